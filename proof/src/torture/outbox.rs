//! Which outbox a run has: pgbaton's own, or a table of the application's that the relay adopts. Whatever differs between them
//! is here: the table, what writers insert, what the relay's configuration says, and what is still to be delivered.
//!
//! The message id of an adopted row is made of the relay's name and the row's id, so that writers know it beforehand.

use checker::history::Deed;
use serde::Serialize;
use uuid::Uuid;

use crate::fixture::{PRODUCER, RELAY};

/// The relay's name.
pub(super) const NAME: &str = "orders";

/// The outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum SourceKind {
    /// pgbaton's own.
    Native,
    /// An adopted table whose rows are marked.
    Mark,
    /// An adopted table whose rows are deleted.
    Delete,
}

/// Ids are random, so rows are read by a number. A customer's numbers grow with its commits: they are taken under its lock.
const TABLE: &str = "
    create table shop.outbox (
      number bigint generated always as identity, id uuid primary key, customer text, topic text not null, payload bytea,
      created_at timestamptz not null default clock_timestamp(), published_at timestamptz);";

/// Rows that are delivered go after a while, as in any application; not one that is being set back.
const PRUNE: &str = "
    delete from shop.outbox where published_at is not null and ctid = any (array(
      select ctid from shop.outbox where published_at < clock_timestamp() - interval '20 s' limit 50000))";

/// What stands at the beginning of a payload that was changed, before the number of the transaction that did it.
const CHANGED: &str = "changed by ";

/// Rows for a deed of the table's owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pick {
    pub(super) deed: Deed,
    /// So many pending rows in front are passed over, and so many taken.
    pub(super) skip: u32,
    pub(super) rows: u32,
    /// The key they get, if that is what is changed.
    pub(super) key: Option<u32>,
    /// Bytes of the payload they get.
    pub(super) size: u32,
}

/// Which transaction a message has its content from, if it is not the one that wrote it.
pub(super) fn changed_by(payload: &[u8]) -> Option<u64> {
    let digits: Vec<u8> =
        payload.strip_prefix(CHANGED.as_bytes())?.iter().copied().take_while(u8::is_ascii_digit).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

impl SourceKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            SourceKind::Native => "native",
            SourceKind::Mark => "mark",
            SourceKind::Delete => "delete",
        }
    }

    pub(super) fn is_adopted(self) -> bool {
        self != SourceKind::Native
    }

    /// What there has to be besides pgbaton's schema: the table, its index, and the grants.
    pub(super) fn ddl(self) -> String {
        if !self.is_adopted() {
            return String::new();
        }
        let marks = if self == SourceKind::Mark { "update (published_at)" } else { "delete" };
        format!(
            "{TABLE}
             create index on shop.outbox (number, id) where {};
             grant usage on schema shop to {RELAY};
             grant select, insert, update, delete on shop.outbox to {PRODUCER};
             grant select, {marks} on shop.outbox to {RELAY};",
            self.pending()
        )
    }

    /// Rows of this condition are to be delivered.
    fn pending(self) -> &'static str {
        if self == SourceKind::Delete { "true" } else { "published_at is null" }
    }

    /// For the relay's section of the configuration.
    pub(super) fn section(self) -> String {
        let mark = match self {
            SourceKind::Native => return "\"native\"".to_owned(),
            SourceKind::Mark => "{ published_at = \"now()\" }",
            SourceKind::Delete => "\"delete\"",
        };
        format!(
            "{{ type = \"table\", table = \"shop.outbox\", id = \"id\", order = \"number\", key = \"customer\", \
             topic = \"topic\", payload = \"payload\", created_at = \"created_at\", pending = \"{}\", mark = {mark} }}",
            self.pending()
        )
    }

    /// What the sink knows a message by that a writer gave this id.
    pub(super) fn message_id(self, id: Uuid) -> String {
        if self.is_adopted() { format!("{NAME}:{id}") } else { id.to_string() }
    }

    /// The table.
    pub(super) const fn table(self) -> &'static str {
        match self {
            SourceKind::Native => "pgbaton.outbox",
            SourceKind::Mark | SourceKind::Delete => "shop.outbox",
        }
    }

    /// The table, with its columns for topic, key, payload and id.
    pub(super) const fn target(self) -> &'static str {
        match self {
            SourceKind::Native => "pgbaton.outbox (topic, key, payload, message_id)",
            SourceKind::Mark | SourceKind::Delete => "shop.outbox (topic, customer, payload, id)",
        }
    }

    /// Inserts many: $1 ids, $2 keys, $3 sizes.
    pub(super) fn insert(self) -> String {
        let rows = "from unnest($1::uuid[], $2::integer[], $3::integer[]) v(id, key, size)";
        if self.is_adopted() {
            let target = self.target();
            return format!(
                "insert into {target} select 'orders', 'k' || v.key, convert_to(repeat('x', v.size), 'UTF8'), v.id {rows}"
            );
        }
        format!(
            "insert into pgbaton.outbox (topic, key, payload, payload_json, message_id)
             select 'orders', 'k' || v.key,
                    case when v.size % 2 = 0 then convert_to(repeat('x', v.size), 'UTF8') end,
                    case when v.size % 2 = 1 then to_json(repeat('x', v.size)) end, v.id {rows}"
        )
    }

    /// How far the relay is: the last number, one that all lanes have passed, and the size of the database. Of an adopted
    /// table, pending rows are all that is not passed.
    pub(super) fn progress(self) -> String {
        let numbers = if self.is_adopted() {
            format!("(select count(*) from shop.outbox where {}), 0::bigint", self.pending())
        } else {
            "(select last_value from pgbaton.outbox_id_seq),
             coalesce((select min(greatest(floor, last)) from pgbaton.newest), 0)"
                .to_owned()
        };
        format!("select {numbers}, pg_database_size(current_database())")
    }

    /// Whether every lane has dealt with all that was committed when this transaction id was given out. A lane of the log
    /// without news writes no position: then it has read up to the outbox's last number, and nobody whom its S saw running has
    /// written. Of an adopted table, nothing may be pending: writers have ended.
    pub(super) fn has_passed(self, last: &str) -> String {
        if self.is_adopted() {
            return format!("select not exists (select from shop.outbox where {})", self.pending());
        }
        format!(
            "select count(*) = (select count(*) from pgbaton.lane) and not exists (select from pgbaton.parked)
             from pgbaton.newest n, pgbaton.outbox_id_seq q
             where pg_snapshot_xmin(n.consumed) > '{last}'::xid8
                or (n.target is null and n.floor >= q.last_value and not exists (
                      select from pg_snapshot_xip(n.consumed) x(xid) join pgbaton.outbox o on o.xid = x.xid))"
        )
    }

    /// What the table's owner does to rows of it. pgbaton's own outbox has no other owner.
    pub(super) const fn deeds(self) -> &'static [Deed] {
        match self {
            SourceKind::Native => &[],
            SourceKind::Mark => &[Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::SetBack, Deed::Deleted],
            SourceKind::Delete => &[Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::Deleted],
        }
    }

    /// Does it, and gives the ids of just those rows that it met. Of marked rows there are many, in no order: the newest are picked, or
    /// some by chance.
    pub(super) fn meddle(self, pick: &Pick, number: u64) -> String {
        let Pick { deed, skip, rows, key, size } = pick;
        let pending = self.pending();
        let picked = match deed {
            Deed::SetBack if *skip == 0 => format!(
                "select id from shop.outbox where published_at > clock_timestamp() - interval '1 s'
                 order by published_at desc limit {rows} for update"
            ),
            Deed::SetBack => format!(
                "select id from shop.outbox tablesample system (5) where published_at is not null limit {rows} for update"
            ),
            _ => format!(
                "select id from shop.outbox where {pending} order by number, id offset {skip} limit {rows} for update"
            ),
        };
        let key = key.map_or_else(|| "null".to_owned(), |key| format!("'k{key}'"));
        let set = match deed {
            Deed::Locked => return picked,
            Deed::Deleted => {
                return format!(
                    "with picked as materialized ({picked}) delete from shop.outbox o using picked where o.id = picked.id
                     returning o.id"
                );
            }
            Deed::Changed => {
                format!("payload = convert_to('{CHANGED}{number} ' || repeat('y', {size}), 'UTF8')")
            }
            Deed::Rekeyed => format!("customer = {key}"),
            Deed::SetBack => "published_at = null".to_owned(),
        };
        format!(
            "with picked as materialized ({picked}) update shop.outbox o set {set} from picked where o.id = picked.id
             returning o.id"
        )
    }

    /// What the application removes by itself, now and then.
    pub(super) fn prune(self) -> Option<&'static str> {
        (self == SourceKind::Mark).then_some(PRUNE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_says_who_gave_it() {
        assert_eq!(changed_by(b"changed by 17 yyyy"), Some(17));
        for other in [&b"xxxx"[..], b"", b"changed by ", b"{\"n\": 1}"] {
            assert_eq!(changed_by(other), None);
        }
    }
}
