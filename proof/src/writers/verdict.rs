//! Compares what was committed with what arrived.

use std::collections::HashMap;

use serde::Serialize;

use super::{Sent, Written};

/// One message as it arrived at the destination, in the order of arrival.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// What receivers know it by.
    pub message_id: String,
    /// Its payload, byte for byte.
    pub payload: String,
}

/// What the comparison found. Only [`Verdict::sent`] and [`Verdict::delivered`] should be more than 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Messages that were committed.
    pub sent: usize,
    /// Of these, the ones that arrived at least once.
    pub delivered: usize,
    /// Of these, the ones that never arrived.
    pub lost: usize,
    /// Arrivals of a message that had arrived before.
    pub duplicates: usize,
    /// First arrivals of a message after a later one of the same key.
    pub out_of_order: usize,
    /// Arrivals that nobody committed: rolled back, or not as they were written.
    pub unexpected: usize,
}

impl Verdict {
    /// Judges arrivals in the order they came in.
    pub fn of<'a>(written: &Written, arrivals: impl IntoIterator<Item = &'a Arrival>) -> Verdict {
        let mut verdict = Verdict { sent: written.sent.len(), ..Verdict::default() };
        // What was sent by its id, and whether it has arrived.
        let mut known: HashMap<&str, (&Sent, bool)> =
            written.sent.iter().map(|sent| (sent.message_id.as_str(), (sent, false))).collect();
        let mut newest: HashMap<u32, i64> = HashMap::new();
        for arrival in arrivals {
            match known.get_mut(arrival.message_id.as_str()) {
                Some((sent, _)) if sent.payload() != arrival.payload => verdict.unexpected += 1,
                None => verdict.unexpected += 1,
                Some((_, true)) => verdict.duplicates += 1,
                Some((sent, arrived)) => {
                    *arrived = true;
                    verdict.delivered += 1;
                    let Some(key) = sent.key else { continue };
                    let newest = newest.entry(key).or_default();
                    verdict.out_of_order += usize::from(sent.n < *newest);
                    *newest = sent.n.max(*newest);
                }
            }
        }
        verdict.lost = verdict.sent - verdict.delivered;
        verdict
    }

    /// Whether everything arrived once, in order, as it was written.
    pub fn is_flawless(&self) -> bool {
        self.lost == 0 && self.duplicates == 0 && self.out_of_order == 0 && self.unexpected == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn sent(id: i64, key: Option<u32>, n: i64) -> Sent {
        Sent { id, message_id: id.to_string(), key, n, committed_at: SystemTime::UNIX_EPOCH }
    }

    fn judge(written: &Written, ids: &[usize]) -> Verdict {
        let arrivals: Vec<Arrival> =
            ids.iter().map(|id| Arrival { message_id: id.to_string(), payload: written.sent[*id].payload() }).collect();
        Verdict::of(written, &arrivals)
    }

    fn two_keys() -> Written {
        Written { sent: vec![sent(0, Some(1), 1), sent(1, Some(1), 2), sent(2, Some(2), 1), sent(3, None, 0)] }
    }

    #[test]
    fn keys_may_mix_but_not_turn_around() {
        let flawless = judge(&two_keys(), &[3, 2, 0, 1]);
        assert!(flawless.is_flawless() && flawless.delivered == 4, "{flawless:?}");
        assert_eq!(judge(&two_keys(), &[1, 0, 2, 3]).out_of_order, 1);
    }

    #[test]
    fn a_repeat_is_a_duplicate_wherever_it_comes() {
        let verdict = judge(&two_keys(), &[0, 1, 0, 2, 3, 3]);
        assert_eq!((verdict.duplicates, verdict.out_of_order, verdict.lost), (2, 0, 0));
    }

    #[test]
    fn what_is_missing_is_lost_and_what_nobody_sent_is_unexpected() {
        let mut arrivals = vec![Arrival { message_id: "9".into(), payload: "{}".into() }];
        arrivals.push(Arrival { message_id: "0".into(), payload: "{}".into() });
        let verdict = Verdict::of(&two_keys(), &arrivals);
        assert_eq!((verdict.lost, verdict.unexpected, verdict.delivered), (4, 2, 0));
    }
}
