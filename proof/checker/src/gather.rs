//! From records to tables, one record at a time.

use crate::facts::{
    Ack, Answer, Arrival, Claim, Emptied, Ended, Ending, Facts, FailOver, Fault, GrantNo, Lease, Line, Look, Meddled,
    Publish, Refusal, Reopening, Replica, ReplicaNo, Sample, TookBack, Transaction, TransactionNo, Write, next,
};
use crate::history::{Deed, Event, Grant, Message, Nanos, Position, Record};

impl Facts {
    /// Takes one record. Records of one file come in the order of its lines.
    pub fn take(&mut self, line: Line, Record { t, event }: Record) {
        match event {
            Event::Wrote { .. }
            | Event::TookBack { .. }
            | Event::Committed { .. }
            | Event::RolledBack { .. }
            | Event::Over { .. } => self.take_writer(t, line, event),
            Event::Meddled { transaction, deed, ids } => self.meddled(t, line, (transaction, deed), &ids),
            Event::Publish { replica, grant, timeline, batch, ids } => {
                self.publish(t, line, (&replica, grant), (timeline, batch), &ids);
            }
            Event::Writing { replica, grant, looked } => self.writing(looked, line, (&replica, grant)),
            Event::Answered { replica, grant, batch, answer } => {
                self.answered(t, line, (&replica, grant, batch), &answer);
            }
            Event::Acknowledged { sent, timeline, positions, changed, aside, .. } => {
                positions.into_iter().for_each(|position| self.ack((sent, timeline), t, line, position));
                for id in &changed {
                    let message = self.ids.number(id);
                    self.changed.push((message, line));
                }
                for id in &aside {
                    let message = self.ids.number(id);
                    self.aside.push((message, t));
                }
            }
            Event::Emptied { segment, .. } => self.emptied.push(Emptied { segment, t, line }),
            Event::Joined { .. } | Event::Renewed { .. } | Event::Left { .. } => self.take_lease(t, line, event),
            Event::Claimed { .. }
            | Event::Raised { .. }
            | Event::Released { .. }
            | Event::Dropped { .. }
            | Event::Reopened { .. } => self.take_ownership(t, line, event),
            event => self.take_stage(t, line, event),
        }
    }

    fn take_writer(&mut self, t: Nanos, line: Line, event: Event) {
        match event {
            Event::Wrote { transaction, messages } => {
                let transaction = self.writing_transaction(t, transaction);
                for Message { id, key, n } in messages {
                    let message = self.ids.number(&id);
                    self.writes.push(Write { message, transaction, key, n, line });
                }
            }
            Event::TookBack { transaction, ids } => {
                let transaction = self.transaction(transaction);
                for id in &ids {
                    let message = self.ids.number(id);
                    self.took_back.push(TookBack { transaction, message, line });
                }
            }
            Event::Committed { transaction, sent } => {
                let transaction = self.transaction(transaction);
                if let Some(known) = self.transactions.get_mut(transaction as usize) {
                    known.committed = Some((sent, line));
                }
            }
            Event::RolledBack { transaction } => {
                let transaction = self.transaction(transaction);
                if let Some(known) = self.transactions.get_mut(transaction as usize) {
                    known.rolled_back = Some(line);
                }
            }
            Event::Over { transaction } => {
                let transaction = self.transaction(transaction);
                if let Some(known) = self.transactions.get_mut(transaction as usize) {
                    known.over = Some(t);
                }
            }
            _ => {}
        }
    }

    fn writing_transaction(&mut self, t: Nanos, number: u64) -> TransactionNo {
        let transaction = self.transaction(number);
        if let Some(known) = self.transactions.get_mut(transaction as usize) {
            known.wrote = Some(known.wrote.map_or(t, |wrote| wrote.min(t)));
        }
        transaction
    }

    fn meddled(&mut self, t: Nanos, line: Line, (transaction, deed): (u64, Deed), ids: &[String]) {
        let transaction = self.writing_transaction(t, transaction);
        for id in ids {
            let message = self.ids.number(id);
            self.meddled.push(Meddled { deed, message, transaction, t, line });
        }
    }

    fn take_lease(&mut self, t: Nanos, line: Line, event: Event) {
        match event {
            Event::Joined { replica, name, pid, until, .. } => {
                let number = self.replica(&replica);
                if let Some(replica) = self.replicas.get_mut(number as usize) {
                    (replica.name, replica.pid) = (name, Some(pid));
                    replica.leases.push(Lease { t, confirmed: Some(t), until, line });
                }
            }
            Event::Renewed { replica, until, confirmed } => {
                let number = self.replica(&replica);
                if let Some(replica) = self.replicas.get_mut(number as usize) {
                    replica.leases.push(Lease { t, confirmed, until, line });
                }
            }
            Event::Left { replica } => {
                let number = self.replica(&replica);
                if let Some(replica) = self.replicas.get_mut(number as usize) {
                    replica.left.get_or_insert((t, line));
                }
            }
            _ => {}
        }
    }

    fn take_ownership(&mut self, t: Nanos, line: Line, event: Event) {
        match event {
            Event::Claimed { replica, sent, timeline, grants } => {
                let replica = self.replica(&replica);
                for grant in grants {
                    let grant = self.grant(grant);
                    self.claims.push(Claim { replica, grant, sent, timeline, line });
                }
            }
            Event::Raised { replica, sent, timeline, from, to } => {
                let (replica, from, grant) = (self.replica(&replica), self.grant(from), self.grant(to));
                self.claims.push(Claim { replica, grant, sent, timeline, line });
                self.endings.push(Ending { replica, grant: from, t, how: Ended::Raised, line });
            }
            Event::Released { replica, grants, settled } => {
                let how = if settled { Ended::Settled } else { Ended::Unsettled };
                self.ending(t, line, (&replica, how), grants);
            }
            Event::Dropped { replica, grants, why } => {
                // Older histories tell in this way of what is given back undrained.
                let how = if why == "it is given back as it is" { Ended::Unsettled } else { Ended::Dropped };
                self.ending(t, line, (&replica, how), grants);
            }
            Event::Reopened { replica, grant, .. } => {
                let (replica, grant) = (self.replica(&replica), self.grant(grant));
                self.reopenings.push(Reopening { replica, grant, t });
            }
            _ => {}
        }
    }

    fn ending(&mut self, t: Nanos, line: Line, (replica, how): (&str, Ended), grants: Vec<Grant>) {
        let replica = self.replica(replica);
        for grant in grants {
            let grant = self.grant(grant);
            self.endings.push(Ending { replica, grant, t, how, line });
        }
    }

    fn publish(
        &mut self,
        t: Nanos,
        line: Line,
        (replica, grant): (&str, Grant),
        (timeline, batch): (u32, i64),
        ids: &[String],
    ) {
        let (replica, grant, start) = (self.replica(replica), self.grant(grant), self.published.len());
        for id in ids {
            let message = self.ids.number(id);
            self.published.push(message);
        }
        self.letters.resize(self.published.len(), 0);
        let number = next(&self.publishes);
        if let Some(last) = self.under_way.insert((replica, grant), number) {
            self.overlapping.push((last, number));
        }
        self.last_publish.insert((replica, grant), number);
        let (len, answer, answered, writing) = (next(ids), Answer::None, None, None);
        self.publishes.push(Publish {
            replica,
            grant,
            timeline,
            batch,
            t,
            line,
            start,
            len,
            answer,
            answered,
            writing,
        });
    }

    /// Belongs to the last call, even if that was cut off.
    fn writing(&mut self, looked: Nanos, line: Line, (replica, grant): (&str, Grant)) {
        let (replica, grant) = (self.replica(replica), self.grant(grant));
        let last = self.last_publish.get(&(replica, grant)).copied();
        match last.and_then(|number| Some((number, self.publishes.get_mut(number as usize)?))) {
            Some((number, publish)) => {
                publish.writing = publish.writing.max(Some((looked, line)));
                self.looks.push(Look { publish: number, looked, line });
            }
            None => self.stray.push(line),
        }
    }

    fn answered(&mut self, t: Nanos, line: Line, (replica, grant, batch): (&str, Grant, i64), answer: &str) {
        let (replica, grant) = (self.replica(replica), self.grant(grant));
        let known = self.under_way.remove(&(replica, grant));
        let publish = known.and_then(|number| self.publishes.get_mut(number as usize));
        let Some(publish) = publish.filter(|publish| publish.batch == batch) else {
            self.stray.push(line);
            return;
        };
        publish.answered = Some((t, line));
        publish.answer = match answer {
            "down" => Answer::Down,
            "fenced" => Answer::Refused(Refusal::Fenced),
            "moved" => Answer::Refused(Refusal::Moved),
            "refused" => Answer::Refused(Refusal::OneOfThem),
            "lease_over" => Answer::Refused(Refusal::LeaseOver),
            "ambiguous" => Answer::Ambiguous,
            "cut" => Answer::Cut,
            letters if letters.len() == publish.len as usize && letters.bytes().all(|l| b"drtx-".contains(&l)) => {
                let (start, end) = (publish.start, publish.start + publish.len as usize);
                if let Some(place) = self.letters.get_mut(start..end) {
                    place.copy_from_slice(letters.as_bytes());
                }
                Answer::Letters
            }
            _ => {
                self.unreadable
                    .push((line, "the answer is neither a letter for each message nor a known error".into()));
                Answer::Ambiguous
            }
        };
    }

    fn ack(&mut self, (sent, timeline): (Nanos, u32), t: Nanos, line: Line, position: Position) {
        let grant = self.grant(position.grant);
        let Position { batch, consumed, again, .. } = position;
        self.acks.push(Ack { grant, sent, t, timeline, batch, consumed, again, line });
    }

    fn take_stage(&mut self, t: Nanos, line: Line, event: Event) {
        match event {
            Event::Run(run) => self.runs.push((line, run)),
            Event::Fault { number, kind, target, pid, phase } => {
                let known = self.faults.iter_mut().rev().find(|fault| fault.number == number);
                match known {
                    Some(fault) => fault.phase(phase, t, pid),
                    None => {
                        let mut fault = Fault { number, kind, target, pid, from: t, to: None, line };
                        fault.phase(phase, t, pid);
                        self.faults.push(fault);
                    }
                }
            }
            Event::FailedOver { from, to, timeline, safe } => {
                self.fail_overs.push(FailOver { from, to, timeline, safe, line });
            }
            Event::Arrived { place, ids, contents } => self.arrival(line, place, &ids, &contents),
            Event::Ledger { transactions } => {
                self.ledger_lines += 1;
                for transaction in transactions {
                    let transaction = self.transaction(transaction);
                    if let Some(known) = self.transactions.get_mut(transaction as usize) {
                        known.ledger = Some(line);
                    }
                }
            }
            Event::Sample { name, pid, resident_kib, files, connections } => {
                self.samples.push(Sample { name, pid, t, resident_kib, files, connections, line });
            }
            Event::Calm => self.calm = Some((t, line)),
            Event::Drained => self.drained = Some((t, line)),
            Event::End { lines } => (self.end, self.counted) = (Some((t, line)), lines),
            _ => {}
        }
    }

    fn arrival(&mut self, line: Line, place: String, ids: &[String], contents: &[(u32, u64)]) {
        let known = self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        // The reader refuses a history of more places.
        let (place, start) = (u16::try_from(known).unwrap_or(u16::MAX), self.arrived.len());
        let first = next(&self.arrived);
        self.contents.extend(contents.iter().map(|(nth, content)| (first.saturating_add(*nth), *content)));
        for id in ids {
            let message = self.ids.number(id);
            self.arrived.push(message);
        }
        self.arrivals.push(Arrival { place, start, len: next(ids), line });
    }

    fn transaction(&mut self, number: u64) -> TransactionNo {
        *self.transaction_numbers.entry(number).or_insert_with(|| {
            self.transactions.push(Transaction {
                number,
                wrote: None,
                committed: None,
                rolled_back: None,
                over: None,
                ledger: None,
            });
            next(&self.transactions) - 1
        })
    }

    fn replica(&mut self, id: &str) -> ReplicaNo {
        if let Some(known) = self.replica_numbers.get(id) {
            return *known;
        }
        let number = next(&self.replicas);
        self.replicas.push(Replica::default());
        self.replica_numbers.insert(id.to_owned(), number);
        number
    }

    fn grant(&mut self, grant: Grant) -> GrantNo {
        if let Some(known) = self.grant_numbers.get(&grant) {
            return *known;
        }
        let number = next(&self.grants);
        self.grants.push(grant.clone());
        self.grant_numbers.insert(grant, number);
        number
    }
}
