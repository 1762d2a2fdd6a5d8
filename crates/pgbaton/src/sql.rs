//! Every statement, one in each file of `sql/`, named by its verb.
//!
//! The header of a file says what it is for, its parameters and rows, what it locks, which index it relies on, and what
//! must stay true. All of them are prepared against a real server in the tests.

/// One statement.
#[derive(Debug, Clone, Copy)]
pub struct Verb<'a> {
    /// The file's name.
    pub name: &'static str,
    /// Its text.
    pub sql: &'a str,
}

/// What every transaction sets first: no compiling, no other processes, and plans for the values at hand, whatever the
/// role, the database or the server was set to. Public for the test of the plans.
#[doc(hidden)]
pub const SETTINGS: &str = "set local jit = off; set local max_parallel_workers_per_gather = 0; \
     set local plan_cache_mode = force_custom_plan; set local enable_indexscan = on; set local enable_nestloop = on; \
     set local enable_seqscan = off";

/// What transactions that read messages set besides: the one plan that was tested. Public for the test of the plans.
#[doc(hidden)]
pub const READ_SETTINGS: &str = "set local enable_bitmapscan = off; \
     set local enable_sort = off; set local enable_indexonlyscan = on; set local enable_material = off; \
     set local enable_memoize = off; set local enable_hashjoin = off; set local enable_mergejoin = off; \
     set local random_page_cost = 1; set local enable_partition_pruning = on; set local row_security = off";

/// A name as SQL has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL has it, whatever the server is set to.
pub(crate) fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    match doubled.contains('\\') {
        true => format!(" E'{}'", doubled.replace('\\', "\\\\")),
        false => format!("'{doubled}'"),
    }
}

macro_rules! verbs {
    ($($verb:ident = $name:literal),* $(,)?) => {
        $(pub(crate) const $verb: Verb<'static> = Verb { name: $name, sql: include_str!(concat!("sql/", $name, ".sql")) };)*

        /// All statements, for tests.
        pub const ALL: &[Verb<'static>] = &[$($verb),*];
    };
}

verbs! {
    ACKNOWLEDGE = "acknowledge",
    ACKNOWLEDGE_LOCK = "acknowledge_lock",
    ADOPT_FACTS = "adopt_facts",
    ADOPTERS = "adopters",
    AUDIT = "audit",
    AUDIT_WRITE = "audit_write",
    BEHIND = "behind",
    CEILING = "ceiling",
    CLAIM = "claim",
    CLAIM_LOCK = "claim_lock",
    COMMAND_LOCK = "command_lock",
    CONFIRM = "confirm",
    DEAD_COPY = "dead_copy",
    DEAD_DISCARD = "dead_discard",
    DEAD_GONE = "dead_gone",
    DEAD_OLD = "dead_old",
    DEAD_RETRY = "dead_retry",
    DEAD_ROWS = "dead_rows",
    DROP_RELAY = "drop_relay",
    EMPTIED = "emptied",
    EMPTY_SEGMENT = "empty_segment",
    EXPIRE = "expire",
    FLUSH = "flush",
    FLUSHED = "flushed",
    GRANTS_LACKING = "grants_lacking",
    HOLDERS = "holders",
    INCARNATION = "incarnation",
    INSERTED = "inserted",
    JOIN = "join",
    LANE_NUMBERS = "lane_numbers",
    LANES_BEHIND = "lanes_behind",
    LANES_LOCK = "lanes_lock",
    LANES_OF = "lanes_of",
    LEAVE = "leave",
    LOOK_SETTINGS = "look_settings",
    MARK_SETTINGS = "mark_settings",
    MESSAGE = "message",
    NEEDS = "needs",
    NEWEST = "newest",
    NEWEST_BATCH = "newest_batch",
    OPEN_PATH = "open_path",
    OPEN_TRANSACTIONS = "open_transactions",
    OUTBOX_FACTS = "outbox_facts",
    OWN_PATH = "own_path",
    PARK = "park",
    PARK_ROWS = "park_rows",
    PARKED_CONTENT = "parked_content",
    PARKED_COUNTS = "parked_counts",
    PARKED_DELIVERED = "parked_delivered",
    PARKED_DEMOTE = "parked_demote",
    PARKED_DUE = "parked_due",
    PARKED_FAILED = "parked_failed",
    PARKED_HELD = "parked_held",
    PARKED_HURRY = "parked_hurry",
    PARKED_KEYS = "parked_keys",
    PARKED_LANES = "parked_lanes",
    PARKED_LIST = "parked_list",
    PARKED_MESSAGES = "parked_messages",
    PARKED_NEXT = "parked_next",
    PARKED_OLDEST = "parked_oldest",
    PARKED_PAUSE = "parked_pause",
    PARKED_RESUME = "parked_resume",
    PARKED_STEPPED = "parked_stepped",
    PARKED_SURVIVED = "parked_survived",
    PARKED_TRYING = "parked_trying",
    PAUSE = "pause",
    PAUSES = "pauses",
    POSITION_COPY = "position_copy",
    POSITION_SIZES = "position_sizes",
    POSITION_TURN = "position_turn",
    PREPARED_TRANSACTIONS = "prepared_transactions",
    QUIT = "quit",
    RAISE = "raise",
    REBASE = "rebase",
    REGISTER = "register",
    REGISTER_LOCK = "register_lock",
    RELAY_CHANGED = "relay_changed",
    RELAYS = "relays",
    RELEASE = "release",
    RENEW = "renew",
    REPLAY = "replay",
    REPLICAS = "replicas",
    RESUME = "resume",
    RING = "ring",
    ROLE_FACTS = "role_facts",
    ROLE_SETTINGS = "role_settings",
    ROW_SECURITY = "row_security",
    SCHEMA_VERSION = "schema_version",
    SEGMENTS = "segments",
    SEND = "send",
    SERVER_FACTS = "server_facts",
    SET_RING = "set_ring",
    SETTLE_TIMELINE = "settle_timeline",
    SLOTS = "slots",
    SPLIT = "split",
    STANDBYS = "standbys",
    STATUS = "status",
    STRAGGLERS = "stragglers",
    STRAGGLERS_END = "stragglers_end",
    SURVIVED = "survived",
    TABLE_FACTS = "table_facts",
    TARGET = "target",
    TRACE_AHEAD = "trace_ahead",
    TRACE_EMPTIED = "trace_emptied",
    TRACE_MESSAGE_ID = "trace_message_id",
    TRACE_NUMBER = "trace_number",
    TRACE_PARKED = "trace_parked",
    TRACE_RELAYS = "trace_relays",
    TRACE_SETTINGS = "trace_settings",
    TRACE_WRITERS = "trace_writers",
    WAKES = "wakes",
    WANT_LANES = "want_lanes",
    WATCH = "watch",
    WHOLE_INDEXES = "whole_indexes",
    WINDOW = "window",
    WINDOW_END = "window_end",
    WRITABLE = "writable",
    WRITTEN = "written",
}
