//! The metrics: each with its name, kind, unit, labels, and what it means.

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Without its unit and without `_total`.
    pub stem: &'static str,
    /// What it means, in one sentence without a full stop.
    pub help: &'static str,
    /// What it is counted in, if not in pieces.
    pub unit: Option<Unit>,
    /// How it moves.
    pub kind: Kind,
    /// Its labels: never more than a relay, or one of a few words.
    pub labels: &'static [&'static str],
}

/// What a metric is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, with a fraction.
    Seconds,
    /// Bytes.
    Bytes,
}

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only up, from 0 at the start of the process.
    Counter,
    /// Up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Name {
    /// The name that queries use.
    #[must_use]
    pub fn full(&self) -> String {
        let unit = match self.unit {
            Some(Unit::Seconds) => "_seconds",
            Some(Unit::Bytes) => "_bytes",
            None => "",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.stem)
    }
}

const fn of_relay(stem: &'static str, kind: Kind, unit: Option<Unit>, help: &'static str) -> Name {
    Name { stem, help, unit, kind, labels: &["relay"] }
}

const fn gauge(stem: &'static str, unit: Option<Unit>, labels: &'static [&'static str], help: &'static str) -> Name {
    Name { stem, help, unit, kind: Kind::Gauge, labels }
}

/// Messages that the sink took.
pub const DELIVERED: Name = of_relay("pgbaton_messages_delivered", Kind::Counter, None, "Messages that the sink took");
/// Messages that the sink had already.
pub const REPEATED: Name =
    of_relay("pgbaton_messages_repeated", Kind::Counter, None, "Messages that the sink had already and dropped");
/// Attempts answered with a retry.
pub const RETRIED: Name =
    of_relay("pgbaton_messages_retried", Kind::Counter, None, "Attempts that the sink answered with: later");
/// Attempts answered with a rejection.
pub const REJECTED: Name =
    of_relay("pgbaton_messages_rejected", Kind::Counter, None, "Attempts that the sink answered with: never");
/// Messages that were set aside.
pub const SET_ASIDE: Name = of_relay(
    "pgbaton_messages_set_aside",
    Kind::Counter,
    None,
    "Times that a message was set aside, to be tried again",
);
/// Messages that were given up.
pub const GIVEN_UP: Name =
    of_relay("pgbaton_messages_given_up", Kind::Counter, None, "Messages that are dead, since the process started");
/// Messages that are set aside now.
pub const PARKED: Name = of_relay(
    "pgbaton_messages_parked",
    Kind::Gauge,
    None,
    "Messages that are set aside, with those that wait behind them, whoever owns the lanes; up to 10000",
);
/// Messages that are dead now.
pub const DEAD: Name = of_relay("pgbaton_messages_dead", Kind::Gauge, None, "Dead messages, up to 10000");
/// Calls that failed as a whole.
pub const SINK_FAILURES: Name =
    of_relay("pgbaton_sink_failures", Kind::Counter, None, "Calls to the sink that failed as a whole");
/// Transactions that wrote positions.
pub const ACKNOWLEDGEMENTS: Name =
    of_relay("pgbaton_acknowledgements", Kind::Counter, None, "Transactions that wrote positions");
/// Rows that were changed while they were delivered.
pub const CHANGED: Name = of_relay(
    "pgbaton_rows_changed",
    Kind::Counter,
    None,
    "Rows of an adopted table that were changed after they had been read to be delivered: their former content was sent, and they are marked",
);
/// Rows that somebody else dealt with while they were delivered.
pub const GONE: Name = of_relay(
    "pgbaton_rows_gone",
    Kind::Counter,
    None,
    "Rows of an adopted table that were delivered and were no longer pending when they were to be marked, although nobody of pgbaton marked them",
);
/// Lanes that this replica holds.
pub const LANES_OWNED: Name = of_relay("pgbaton_lanes_owned", Kind::Gauge, None, "Lanes that this replica holds now");
/// Lanes held by a message.
pub const LANES_HELD: Name = of_relay(
    "pgbaton_lanes_held",
    Kind::Gauge,
    None,
    "Lanes of this replica that stand still, since the sink does not take a message",
);
/// Lanes that are not published.
pub const LANES_REFUSED: Name = of_relay(
    "pgbaton_lanes_refused",
    Kind::Gauge,
    None,
    "Lanes of this replica that are not published until a person has decided something",
);
/// What is promised with the sink.
pub const SINK_TIER: Name = of_relay(
    "pgbaton_sink_tier",
    Kind::Gauge,
    None,
    "What the sink can promise: 1 exactly once, 3 once within a window, 4 at least once and fenced, 5 at least once",
);
/// For how long the sink has been down: calls of some lane have failed without a break.
pub const SINK_DOWN: Name = of_relay(
    "pgbaton_sink_down",
    Kind::Gauge,
    Some(Unit::Seconds),
    "For how long calls of some lane have failed without a break, as this replica sees it; 0 if none does",
);
/// Ids not passed yet, or rows that are pending.
pub const IDS_BEHIND: Name = of_relay(
    "pgbaton_ids_behind",
    Kind::Gauge,
    None,
    "Ids between what all lanes of the relay have passed and the last one of the outbox, whoever owns the lanes; of an adopted table its pending rows, up to 10000",
);
/// Age of the oldest undelivered message.
pub const OLDEST: Name = of_relay(
    "pgbaton_oldest_undelivered_age",
    Kind::Gauge,
    Some(Unit::Seconds),
    "Age of the oldest message that was not delivered, over all lanes of the relay; 0 if there is none",
);
/// From the inserting statement to the sink's answer.
pub const COMMIT_TO_DELIVERY: Name = of_relay(
    "pgbaton_commit_to_delivery",
    Kind::Histogram,
    Some(Unit::Seconds),
    "From the statement that inserted a message to the sink's answer, by the database server's clock",
);
/// Registered relays without a replica.
pub const UNATTENDED: Name =
    of_relay("pgbaton_relay_unattended", Kind::Gauge, None, "1 for each registered relay that no replica runs");
/// What is left of the lease.
pub const LEASE_LEFT: Name = gauge(
    "pgbaton_lease_left",
    Some(Unit::Seconds),
    &[],
    "For how long this replica may still publish if it is not renewed; 0 if it holds no lease",
);
/// Whether the database answers.
pub const DATABASE_UP: Name =
    gauge("pgbaton_database_up", None, &[], "1 if the last look at the database was answered, else 0");
/// Segments by what they are for.
pub const SEGMENTS: Name = gauge(
    "pgbaton_outbox_segments",
    None,
    &["state"],
    "Segments of the outbox: in_use by producers, kept since messages in them are needed, empty",
);
/// Their size.
pub const SEGMENT_BYTES: Name =
    gauge("pgbaton_outbox_size", Some(Unit::Bytes), &[], "Size of all segments of the outbox with their indexes");
/// Whether the last reload was refused.
pub const RELOAD_REFUSED: Name = gauge(
    "pgbaton_reload_refused",
    None,
    &[],
    "1 if the configuration was refused when it was last read again: an older one is in use",
);

/// All of them, in the order in which they are told.
pub const ALL: [Name; 26] = [
    DELIVERED,
    REPEATED,
    RETRIED,
    REJECTED,
    SET_ASIDE,
    GIVEN_UP,
    SINK_FAILURES,
    ACKNOWLEDGEMENTS,
    CHANGED,
    GONE,
    LANES_OWNED,
    LANES_HELD,
    LANES_REFUSED,
    SINK_TIER,
    SINK_DOWN,
    IDS_BEHIND,
    OLDEST,
    PARKED,
    DEAD,
    COMMIT_TO_DELIVERY,
    UNATTENDED,
    LEASE_LEFT,
    DATABASE_UP,
    SEGMENTS,
    SEGMENT_BYTES,
    RELOAD_REFUSED,
];
