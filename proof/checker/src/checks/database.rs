//! database: the database, and the run itself, did what the other checks rest on. No commit that was confirmed is gone but by an
//! asynchronous fail-over; no message was committed twice.

use crate::case::Case;
use crate::facts::at;
use crate::fates::Fate;
use crate::found::{About, Check, Found};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    found.counts.fail_overs = facts.fail_overs.len() as u64;
    for (number, transaction) in (0..).zip(&facts.transactions) {
        match case.fates.of_transaction(number) {
            Fate::Committed => found.counts.transactions += 1,
            Fate::Vanished => found.violation(facts, Check::Database, || {
                let text = format!(
                    "The database lost a commit: transaction {} was confirmed and is not in the ledger",
                    transaction.number
                );
                let sent = transaction.committed.map_or(0, |(sent, _)| sent);
                let wrote = facts.writes.iter().find(|write| write.transaction == number).map(|write| write.line);
                let lines = wrote.into_iter().chain(transaction.committed.map(|(_, line)| line));
                let about = About { transactions: vec![transaction.number], ..About::default() };
                (text, lines.chain(case.lines_of_fail_overs(sent)).collect(), about)
            }),
            _ => {}
        }
    }
    for message in case.fates.committed_twice() {
        found.violation(facts, Check::Database, || {
            let text = format!("Message {} was committed twice", case.id(*message));
            let writes = facts.writes.iter().filter(|write| write.message == *message);
            let transactions = writes.clone().filter_map(|write| at(&facts.transactions, write.transaction));
            let ends = transactions.filter_map(|transaction| transaction.ledger);
            (text, writes.map(|write| write.line).chain(ends).collect(), case.about(&[*message]))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    #[test]
    fn a_confirmed_commit_is_in_the_ledger() {
        let story = || Story::run(true).wrote(10, 1, &["a"]).committed(11, 1);
        assert_eq!(story().ledger(99, &[1]).violations(check, Check::Database), 0);
        assert_eq!(story().ledger(99, &[]).violations(check, Check::Database), 1);
        assert_eq!(story().failed_over(20, 30, 2, false).ledger(99, &[]).violations(check, Check::Database), 0);
        assert_eq!(story().failed_over(20, 30, 2, true).ledger(99, &[]).violations(check, Check::Database), 1);
    }

    #[test]
    fn a_message_is_committed_once() {
        let story = Story::run(true).wrote(10, 1, &["a"]).wrote(20, 2, &["a"]);
        assert_eq!(story.ledger(99, &[1, 2]).violations(check, Check::Database), 1);
    }
}
