//! What an error of the server says about statements: whether a person has to change them, or a row, or whether it passes by
//! itself. Pure.

use super::table::TableName;
use crate::error::Error;
use crate::lane::RelayName;

/// The connection, a transaction that the server ended because this process stood still in it or that may not write, an
/// operator, the server's system: whatever is asked.
const OF_THE_SERVER: [&str; 4] = ["08", "25", "57P", "58"];
/// A lock that somebody holds, a lack of room, a statement that the server ended.
const PASSING: [&str; 4] = ["40", "53", "55P", "57"];
/// Values that cannot be read as what they are taken for, and texts that are too long for what is made of them.
const OF_A_VALUE: [&str; 2] = ["22", "54"];
/// Names that are not there, types that do not fit, rights that are missing, statements that are none.
const OF_A_NAME: [&str; 2] = ["42", "3F"];
/// Transactions that may not write: a server in recovery says so of all.
const NOT_WRITING: &str = "25";
/// What is unique is there by now. Transient only of what is set aside, which is looked at anew at the next attempt.
const MEANWHILE: &str = "23505";
/// Of a server that may write, it is the operator's SQL that writes where only reading is allowed.
const READ_ONLY: &str = "25006";

/// Names, rights and what the operator wrote are for a person: the server's words about them, of this relay and table.
pub(super) fn in_plain_words(error: Error, relay: &RelayName, table: &TableName) -> Error {
    if !error.sql_state().is_some_and(|state| is_of(state, &OF_A_NAME)) {
        return error;
    }
    let text = format!("relay {relay}, adopted table {table}: {}", error.in_words());
    error.for_a_person(
        text,
        "Was the table altered, or a right taken back? Undo that, or correct the relay's `source` section; `pgbaton adopt --check` \
         looks at both, and `--grants` prints what the relay's role needs. It is looked at again every few seconds",
    )
}

/// Whether the trouble may lie in a row, so that other lanes can be marked all the same. A server that goes on after it has
/// nothing against others: a trigger says by itself what it likes.
pub(super) fn of_a_row(error: &Error, goes_on: bool) -> bool {
    let may_write = |state: &str| !state.starts_with(NOT_WRITING);
    error
        .sql_state()
        .map_or(!error.is_transient(), |state| !is_of(state, &OF_THE_SERVER) || (goes_on && may_write(state)))
}

/// Whether a value of a row cannot be what the statement takes it for: a text that is no JSON, bytes that are no text.
pub(super) fn of_a_value(error: &Error) -> bool {
    error.sql_state().is_some_and(|state| is_of(state, &OF_A_VALUE))
}

/// Whether the same may succeed at the next attempt.
pub(super) fn waits(error: &Error) -> bool {
    error.sql_state().is_some_and(|state| is_of(state, &PASSING) || is_of(state, &OF_THE_SERVER) || state == MEANWHILE)
        && error.is_transient()
}

/// Whether it has nothing to do with what the operator's SQL says.
pub(super) fn passes(error: &Error) -> bool {
    error.is_transient() && error.sql_state().is_none_or(is_no_fault_of_a_text)
}

fn is_no_fault_of_a_text(state: &str) -> bool {
    state != READ_ONLY && (is_of(state, &OF_THE_SERVER) || is_of(state, &PASSING))
}

fn is_of(state: &str, classes: &[&str]) -> bool {
    classes.iter().any(|class| state.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that stood still, or a server that went away, is no fault of a row, nor of what the operator has written.
    #[test]
    fn errors_are_sorted_by_their_codes() {
        let sort = |state| match (is_of(state, &OF_THE_SERVER), is_of(state, &PASSING)) {
            (true, _) => "all again",
            (false, true) => "waits",
            (false, false) => "refused",
        };
        for state in ["25P03", "25006", "08006", "57P01", "58030"] {
            assert_eq!(sort(state), "all again", "{state}");
        }
        for state in ["55P03", "57014", "40P01", "53100"] {
            assert_eq!(sort(state), "waits", "{state}");
        }
        for state in ["23503", "42501", "P0001", "27000"] {
            assert_eq!(sort(state), "refused", "{state}");
        }
        for state in ["57P01", "57P03", "57014", "53300", "25P03", "08006"] {
            assert!(is_no_fault_of_a_text(state), "{state}");
        }
        for state in ["22P02", "22021", "22P05", "2203A", "54000"] {
            assert!(is_of(state, &OF_A_VALUE) && !is_no_fault_of_a_text(state), "{state}");
        }
        for state in ["42703", "22P02", "25006", "0A000", "21000"] {
            assert!(!is_no_fault_of_a_text(state), "{state}");
        }
    }
}
