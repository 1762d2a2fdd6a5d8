//! `pgbaton messages`, `pgbaton dead` and `pgbaton audit`.

use std::fmt::Write;

use pgbaton::control::audit;
use pgbaton::control::parked::{self, Content, Deed, ParkedMessage, Selection};

use crate::args::{DoArgs, ListArgs, ShowArgs, ShowOneArgs};
use crate::{Failure, print, print_json, say};

/// Messages that were set aside, each in one line.
pub(crate) async fn list(list: &ListArgs, dead: Option<bool>) -> Result<(), Failure> {
    let which = list.which.of(list.relay.as_deref(), dead);
    let messages = parked::list(&list.show.database.database()?, &which, list.above, list.most.limit).await?;
    // The next ones, if there may be any.
    let full = i64::try_from(messages.len()) == Ok(list.most.limit);
    let above = messages.last().filter(|_| full).map(|last| last.number);
    if list.show.json {
        return print_json(&serde_json::json!({ "messages": messages, "above": above }));
    }
    print(&table(&messages))?;
    if let Some(above) = above {
        say(&format!("there may be more: --above {above} shows the next ones"));
    }
    Ok(())
}

fn table(messages: &[ParkedMessage]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<16} {:<38} {:<24} {:<24} {:>8} {:<20} WHAT BECOMES OF IT",
        "RELAY", "ID", "TOPIC", "KEY", "ATTEMPTS", "FAULT"
    );
    for message in messages {
        let ParkedMessage { relay, id, topic, key, attempts, code, .. } = message;
        let (key, code) = (key.as_deref().map_or_else(|| "-".to_owned(), plain), code.as_deref().unwrap_or("-"));
        let (id, topic, fate) = (plain(id), plain(topic), message.fate());
        let _ = writeln!(text, "{relay:<16} {id:<38} {topic:<24} {key:<24} {attempts:>8} {code:<20} {fate}");
    }
    text
}

/// An application's text on one line of a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// One message with its faults, and with its content if that is asked for.
pub(crate) async fn show(show: &ShowOneArgs) -> Result<(), Failure> {
    let database = show.show.database.database()?;
    let which = Selection { relay: Some(show.relay.clone()), ids: vec![show.id.clone()], ..Selection::default() };
    let Some(message) = parked::list(&database, &which, 0, 1).await?.pop() else {
        say(&format!("pgbaton: relay {} has not set message {} aside", show.relay, show.id));
        return Err(Failure::Found);
    };
    let content = if show.payload { parked::content(&database, &show.relay, &show.id).await? } else { None };
    let fate = message.fate();
    if show.show.json {
        return print_json(&serde_json::json!({ "message": message, "fate": fate, "content": content }));
    }
    print(&described(&message, content.as_ref()))
}

fn described(message: &ParkedMessage, content: Option<&Content>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("relay", &message.relay);
    line("id", &plain(&message.id));
    line("topic", &plain(&message.topic));
    if let Some(key) = &message.key {
        line("key", &plain(key));
    }
    line("fate", &message.fate());
    if let Some(lane) = message.lane {
        line("lane", &lane.to_string());
    }
    match (&message.log_id, &message.row_id) {
        (Some(id), _) => line("outbox id", &id.to_string()),
        (None, Some(row)) => line("row", &plain(&row.join(", "))),
        (None, None) => {}
    }
    line("bytes", &message.bytes.to_string());
    line("attempts", &message.attempts.to_string());
    line("inserted", &message.created_at);
    line("set aside", &message.parked_at);
    for (name, at) in [("first try", &message.first_at), ("last try", &message.last_at)] {
        if let Some(at) = at {
            line(name, at);
        }
    }
    line("faults", message.faults.get());
    if let Some(content) = content {
        for (name, json) in [("headers", &content.headers), ("payload", &content.payload_json)] {
            if let Some(json) = json {
                line(name, json.get());
            }
        }
        if let Some(bytes) = &content.payload {
            line("payload", &String::from_utf8_lossy(bytes));
        }
    }
    text
}

/// Does it, if it is meant.
pub(crate) async fn act(args: &DoArgs, deed: Deed) -> Result<(), Failure> {
    let which = args.which.of(Some(&args.relay), Some(deed.of_dead()));
    if which.is_all() != args.all {
        return Err(Failure::Usage(if args.all {
            "--all means all messages of the relay; leave out what else was chosen, or --all".to_owned()
        } else {
            "say which messages are meant, or --all".to_owned()
        }));
    }
    let database = args.act.database.database()?;
    let (would, done) = match deed {
        Deed::TryNow => ("would be tried at once", "are tried at once"),
        Deed::Retry => ("would be tried again, as if they never had been", "are tried again"),
        Deed::Discard => ("would be given up for good", "are given up"),
    };
    if !args.act.is_given() {
        let count = parked::count(&database, &which, deed).await?;
        args.act.is_meant(&format!("{count} message(s) {would}"))?;
    }
    let count = parked::act(&database, &which, deed).await?;
    args.act.done(
        &serde_json::json!({ "relay": args.relay, "deed": deed.name(), "messages": count }),
        &format!("{count} message(s) {done}"),
    )
}

/// What was done, the newest first.
pub(crate) async fn audit(relay: Option<&str>, most: i64, show: &ShowArgs) -> Result<(), Failure> {
    let deeds = audit::list(&show.database.database()?, relay, most).await?;
    if show.json {
        return print_json(&serde_json::json!({ "deeds": deeds }));
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<26} {:<20} {:<16} {:<20} {:<16} {:>9}  DETAILS",
        "AT", "WHO", "FROM", "WHAT", "RELAY", "MESSAGES"
    );
    for deed in deeds {
        let (from, relay) = (deed.address.as_deref().unwrap_or("-"), deed.relay.as_deref().unwrap_or("-"));
        let messages = deed.messages.map_or_else(|| "-".to_owned(), |messages| messages.to_string());
        let (at, who, what, details) = (deed.at, deed.who, deed.what, deed.details.get());
        let _ = writeln!(text, "{at:<26} {who:<20} {from:<16} {what:<20} {relay:<16} {messages:>9}  {details}");
    }
    print(&text)
}
