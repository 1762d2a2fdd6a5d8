//! What pauses, goes on, and is delivered again.

use std::time::SystemTime;

use clap::Args as ClapArgs;
use pgbaton::control::pauses::What;

use super::ActArgs;

/// What of a relay is paused: all of it, if nothing else is said.
#[derive(ClapArgs)]
#[group(multiple = false)]
pub(crate) struct WhatArgs {
    /// This lane: nothing of it is handed to the sink.
    #[arg(long)]
    lane: Option<i32>,
    /// This key: its messages are set aside.
    #[arg(long)]
    key: Option<String>,
    /// Topics like this, `*` stands for any text: their messages are set aside, and what follows them in their keys waits.
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
}

impl WhatArgs {
    pub(crate) fn what(&self) -> What {
        match (self.lane, &self.key, &self.topic) {
            (Some(lane), _, _) => What::Lane(lane),
            (None, Some(key), _) => What::Key(key.clone()),
            (None, None, Some(topic)) => What::Topic(topic.clone()),
            (None, None, None) => What::All,
        }
    }
}

/// What is delivered again: messages of which all holds that is given.
#[derive(ClapArgs)]
pub(crate) struct ReplayArgs {
    /// The relay to whose sink they go. What it has not delivered yet comes anyway, and is left out.
    pub(crate) relay: String,
    /// With this message id. May be given several times.
    #[arg(long = "id", value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Of this key.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Whose topic is like this: `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) topic: Option<String>,
    /// Inserted at this time or later, such as 2026-12-01T10:00:00Z, or so long ago at most, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<SystemTime>,
    /// Inserted before this time, or longer ago than that.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<SystemTime>,
    /// All that the outbox still holds.
    #[arg(long)]
    pub(crate) all: bool,
    /// Under the same message ids: a receiver that drops repeats drops them. Otherwise each gets a new one.
    #[arg(long)]
    pub(crate) keep_ids: bool,
    #[command(flatten)]
    pub(crate) act: ActArgs,
}

#[derive(ClapArgs)]
pub(crate) struct PauseArgs {
    /// The relay.
    pub(crate) relay: String,
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    #[command(flatten)]
    pub(crate) act: ActArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ResumeArgs {
    /// The relay.
    pub(crate) relay: String,
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// All that is paused of it, whatever it is.
    #[arg(long, conflicts_with_all = ["lane", "key", "topic"])]
    pub(crate) every: bool,
    #[command(flatten)]
    pub(crate) act: ActArgs,
}

/// A time, or how long ago it was by this machine's clock.
fn time(text: &str) -> Result<SystemTime, String> {
    let ago = pgbaton::config::duration(text).and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.or_else(|| pgbaton::config::time(text)).ok_or_else(|| {
        "is neither a time such as 2026-12-01T10:00:00Z nor how long ago, such as 90s, 15m or 2h".to_owned()
    })
}
