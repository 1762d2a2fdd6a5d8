//! By what a table says that a row was delivered: a moment, a flag, a status, or nothing, so that rows are deleted. Pure.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::names::{self, Free, plain};
use crate::source::table::Mark;
use crate::source::table::catalogue::Column;
use crate::sql::literal;

/// What is pending, and what ends that.
pub(super) struct State {
    pub(super) pending: String,
    pub(super) why_pending: String,
    pub(super) mark: Mark,
    pub(super) why_mark: String,
    /// What has to be known besides.
    pub(super) warnings: Vec<String>,
    /// No column says that a row was delivered.
    pub(super) deletes: bool,
}

const DONE: &[&str] = &[
    "published",
    "processed",
    "sent",
    "dispatched",
    "delivered",
    "relayed",
    "emitted",
    "forwarded",
    "handled",
    "produced",
    "completed",
    "done",
];
const MOMENTS: &[&str] = &["at", "on", "time", "timestamp", "date", "atutc", "onutc", "ts", ""];
const STATUS: &[&str] = &[
    "status",
    "state",
    "outboxstatus",
    "outboxstate",
    "publishstatus",
    "publishstate",
    "deliverystatus",
    "deliverystate",
    "processingstatus",
    "messagestatus",
    "messagestate",
    "eventstatus",
];
/// Words of a status, without case and separators.
const WAITS: &[&str] = &[
    "pending",
    "new",
    "unsent",
    "unpublished",
    "unprocessed",
    "notsent",
    "notpublished",
    "notprocessed",
    "ready",
    "queued",
    "enqueued",
    "waiting",
    "created",
    "init",
    "initial",
    "todo",
    "open",
    "outstanding",
    "tosend",
    "stored",
];
const SENT: &[&str] = &[
    "sent",
    "published",
    "processed",
    "delivered",
    "dispatched",
    "relayed",
    "completed",
    "complete",
    "done",
    "success",
    "succeeded",
    "successful",
    "finished",
    "acked",
    "acknowledged",
    "handled",
    "ok",
];
const CLAIMED: &[&str] = &[
    "processing",
    "inprogress",
    "sending",
    "publishing",
    "running",
    "working",
    "locked",
    "claimed",
    "reserved",
    "picked",
    "inflight",
    "started",
    "leased",
];

/// A status column, with what its values seem to mean.
struct Status<'a> {
    column: &'a Column,
    pending: Word,
    sent: Word,
    claimed: Vec<String>,
    others: Vec<String>,
}

/// A value, and where it is from; `None`: it was guessed.
struct Word {
    value: String,
    from: Option<&'static str>,
}

/// Looks for what says that a row was delivered, and takes those columns.
pub(super) fn find(facts: &Facts, free: &mut Free<'_>) -> State {
    let status = free.find(STATUS, &[names::TEXTS, names::INTEGERS].concat()).map(|column| Status::of(facts, column));
    let flag = flag(free);
    let moment = moment(free);
    let known = |status: &Status<'_>| status.pending.from.is_some();
    let state = match (status, flag, moment) {
        (Some(status), flag, moment) if known(&status) || (flag.is_none() && moment.is_none()) => {
            by_status(facts, &status, flag, moment)
        }
        (_, Some((flag, unless)), moment) => by_flag(facts, flag, unless, moment),
        (_, None, Some(moment)) => by_moment(facts, moment),
        (_, None, None) => by_deleting(),
    };
    if let Mark::Set(columns) = &state.mark {
        let names: Vec<&str> = columns.keys().map(String::as_str).collect();
        free.drop_all(&names);
    }
    state
}

fn moment<'a>(free: &Free<'a>) -> Option<&'a Column> {
    DONE.iter().find_map(|done| {
        let names: Vec<String> = MOMENTS.iter().map(|moment| format!("{done}{moment}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        free.find(&names, &[names::TIMES, &["date", "int8"]].concat()).filter(|column| !column.not_null)
    })
}

/// A flag, and whether it says that a row is still to be delivered.
fn flag<'a>(free: &Free<'a>) -> Option<(&'a Column, bool)> {
    let named = |words: &[&str]| {
        words.iter().find_map(|word| {
            let names = ["", "is", "was", "has", "hasbeen"].map(|prefix| format!("{prefix}{word}"));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            free.find(&names, &["bool"])
        })
    };
    let waits = ["pending", "unsent", "unpublished", "unprocessed"];
    named(DONE).map(|column| (column, false)).or_else(|| named(&waits).map(|column| (column, true)))
}

impl<'a> Status<'a> {
    fn of(facts: &Facts, column: &'a Column) -> Self {
        let values = facts.values(&column.name);
        let of = |words: &[&str]| {
            let is = |word: &str| values.iter().find(|(value, _)| plain(value) == word);
            words.iter().find_map(|word| is(word)).map(|(value, from)| Word { value: value.clone(), from: Some(*from) })
        };
        let number = names::INTEGERS.contains(&column.kind.as_str());
        // What a row is inserted with waits, whatever it is called, unless it is called otherwise.
        let by_default = values.first().filter(|(value, from)| {
            *from == "its default" && ![SENT, CLAIMED].iter().any(|words| words.contains(&plain(value).as_str()))
        });
        let pending = of(WAITS).or_else(|| {
            let (value, from) = by_default?;
            // A default such as 'active' means something else, unless another value says that the row was sent.
            (number || of(SENT).is_some()).then(|| Word { value: value.clone(), from: Some(*from) })
        });
        let pending =
            pending.unwrap_or_else(|| Word { value: if number { "0" } else { "pending" }.to_owned(), from: None });
        let sent = of(SENT).unwrap_or_else(|| Word {
            value: if number { "1".to_owned() } else { like(&pending.value, "sent") },
            from: None,
        });
        let mut claimed = Vec::new();
        let mut others = Vec::new();
        for (value, _) in values.into_iter().filter(|(value, _)| *value != pending.value && *value != sent.value) {
            if CLAIMED.contains(&plain(&value).as_str()) { claimed.push(value) } else { others.push(value) }
        }
        Self { column, pending, sent, claimed, others }
    }

    fn sql(&self, word: &str) -> String {
        let number = names::INTEGERS.contains(&self.column.kind.as_str()) && word.bytes().all(|b| b.is_ascii_digit());
        if number { word.to_owned() } else { literal(word).trim_start().to_owned() }
    }
}

/// In the same letters as another word.
fn like(other: &str, word: &str) -> String {
    let upper = other.chars().any(char::is_uppercase);
    match (upper, other.chars().any(char::is_lowercase)) {
        (true, false) => word.to_uppercase(),
        (true, true) => {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        }
        _ => word.to_owned(),
    }
}

fn by_status(facts: &Facts, of: &Status<'_>, flag: Option<(&Column, bool)>, moment: Option<&Column>) -> State {
    let name = facts.sql(&of.column.name);
    let mut mark = BTreeMap::from([(of.column.name.clone(), of.sql(&of.sent.value))]);
    mark.extend(moment.map(|column| (column.name.clone(), now(facts, column).0)));
    mark.extend(flag.map(|(column, unless)| (column.name.clone(), (!unless).to_string())));
    let from = |word: &Word| match word.from {
        Some(from) => format!("{:?} is known from {from}", word.value),
        None => format!("{:?} is a GUESS: nothing says which values there are. Correct it", word.value),
    };
    let mut warnings = Vec::new();
    if !of.claimed.is_empty() {
        let claimed = of.claimed.iter().map(|value| of.sql(value)).collect::<Vec<_>>().join(", ");
        warnings.push(format!(
            "Rows whose {name} is {claimed} are the old relay's: it has taken them and not finished. They are not pending here. \
             Once the old relay is stopped and nothing of it is under way, those that are left were published or not, and nothing \
             in the table says which. Ask the receiver: set those that it has not got back to {}, and the others to {}. If all \
             are set back, those that were published are delivered once more.",
            of.sql(&of.pending.value),
            of.sql(&of.sent.value)
        ));
    }
    if !of.others.is_empty() {
        let others = of.others.iter().map(|value| of.sql(value)).collect::<Vec<_>>().join(", ");
        warnings.push(format!("Rows whose {name} is {others} are not pending here, and stay as they are."));
    }
    State {
        pending: format!("{name} = {}", of.sql(&of.pending.value)),
        why_pending: format!("By the column {name}: {}.", from(&of.pending)),
        mark: Mark::Set(mark),
        why_mark: format!("What the relay before has set, as far as the names say: {}.", from(&of.sent)),
        warnings,
        deletes: false,
    }
}

fn by_flag(facts: &Facts, flag: &Column, unless: bool, moment: Option<&Column>) -> State {
    let name = facts.sql(&flag.name);
    let mut mark = BTreeMap::from([(flag.name.clone(), (!unless).to_string())]);
    mark.extend(moment.map(|column| (column.name.clone(), now(facts, column).0)));
    let pending = match (unless, flag.not_null) {
        (true, _) => name.clone(),
        (false, true) => format!("not {name}"),
        (false, false) => format!("{name} is not true"),
    };
    State {
        pending,
        why_pending: format!("By the column {name}, a flag."),
        mark: Mark::Set(mark),
        why_mark: "What the relay before has set, as far as the names say.".to_owned(),
        warnings: Vec::new(),
        deletes: false,
    }
}

fn by_moment(facts: &Facts, moment: &Column) -> State {
    let name = facts.sql(&moment.name);
    let (now, note) = now(facts, moment);
    State {
        pending: format!("{name} is null"),
        why_pending: format!("By the column {name}: null until the row was delivered."),
        mark: Mark::Set(BTreeMap::from([(moment.name.clone(), now)])),
        why_mark: format!("As the relay before has set it.{note}"),
        warnings: Vec::new(),
        deletes: false,
    }
}

/// This moment as a column's type has it, and what was guessed.
fn now(facts: &Facts, column: &Column) -> (String, &'static str) {
    match column.kind.as_str() {
        "date" => ("current_date".to_owned(), ""),
        "int8" => (
            "(extract(epoch from now()) * 1000)::bigint".to_owned(),
            " That the number counts milliseconds since 1970 is a GUESS: see what stands in rows that were delivered.",
        ),
        "timestamp" => {
            // What other columns of the table do is what its readers expect.
            let utc = facts.shape.columns.iter().filter_map(|column| column.default.as_deref());
            if utc.map(str::to_lowercase).any(|default| default.contains("utc")) {
                ("now() at time zone 'UTC'".to_owned(), " In UTC, as defaults of this table are.")
            } else {
                (
                    "now()".to_owned(),
                    " The column has no time zone: this is the time of the session's `TimeZone`. If it is UTC by the \
                     application's word, write now() at time zone 'UTC'.",
                )
            }
        }
        _ => ("now()".to_owned(), ""),
    }
}

fn by_deleting() -> State {
    State {
        pending: "true".to_owned(),
        why_pending: "No column says that a row was delivered: every row that is there is pending.".to_owned(),
        mark: Mark::Delete,
        why_mark: "So a row is deleted once the sink has it. If rows have to stay, this is wrong: see the warnings."
            .to_owned(),
        warnings: Vec::new(),
        deletes: true,
    }
}
