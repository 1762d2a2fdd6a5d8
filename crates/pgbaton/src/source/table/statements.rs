//! The statements that read and mark an adopted table, made of what the configuration and the catalogue say. Pure.
//!
//! The operator's condition stands only where the table is alone in its FROM under its own name, or beside relations whose
//! columns all begin with `pgbaton_`; it stands on lines of its own, so that a comment at its end ends there.
//!
//! Names in the operator's SQL mean what they mean to the relay's role, by its search path. So everything else is written such
//! that only the server's own functions and operators fit: with their schema, where the types alone do not decide.

use std::fmt::Write;

mod whereabouts;

pub(super) use whereabouts::whereabouts;

use super::catalogue::Shape;
use super::definition::{Mark, TableSpec, Value};
use crate::error::Error;
use crate::sql::{literal, quoted};

/// All of them, as texts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statements {
    /// Ids of pending rows, in order, all in one snapshot.
    ///
    /// Parameters: $1 number of lanes, $2 the lanes (empty: all), $3 how many rows, $4 the relay if some of its rows are set aside:
    /// those are left out; $5 whether these are so few that all of them fit into the server's memory. A look-up for each
    /// row costs twenty times as much as the rest of the look.
    /// Rows: the id's columns as texts, the lane. Locks: none.
    pub(super) look: String,
    /// Rows by id, those that are still pending, in the order in which they are asked for.
    ///
    /// Parameters: $1 the size above which only the size is given, then an array of texts for each column of the id.
    /// Rows: which one, hash, size, when inserted, topic, key, headers, payload as bytes, payload as JSON, version,
    /// and which table it is that has this name.
    /// Locks: none. Relies on: the unique index on the id.
    pub(super) fetch: String,
    /// Marks rows of lanes that are still ours and that are as they were read, and writes the numbers of their batches.
    ///
    /// Parameters: $1 the relay, $2 the replica, $3 the incarnation, $4 lanes, $5 epochs, $6 seqs, $7 batches; then the rows:
    /// $8 lanes, $9 versions (null: any), and an array of texts for each column of the id.
    /// Rows: the incarnation with each lane that is ours, whether that batch was marked before, whether a trigger may have a
    /// say in what a mark leaves, which table has this name, and whether policies may hide its rows; and, with nulls in front,
    /// whether a row that was marked is pending even so, and its id.
    /// Locks: the marked rows, as any update does.
    /// Invariant: no row is marked for a lane of another owner or epoch, nor in another incarnation, nor for a batch that was
    /// marked before: its user may have set it back since.
    pub(super) mark: String,
    /// Marks rows whatever their version. Later in the same transaction as `mark`, for those of its rows that it left because
    /// they were changed: its locks still keep the lanes.
    ///
    /// Parameters: an array of texts for each column of the id. Rows: the ids of those that were marked. Locks: the marked rows.
    pub(super) mark_changed: String,
    /// Which of these rows are still pending. A new statement after `mark`, for those of which it cannot say so itself.
    ///
    /// Parameters: an array of texts for each column of the id. Rows: the ids. Locks: none.
    pub(super) still: String,
    /// How many rows are pending, the first 10,000 of them by the order, and the age of the oldest of these in seconds: null if
    /// there is none, or if no column tells. Rows: one. Locks: none.
    pub(super) behind: String,
    /// Whether the mark ends the condition, tried on one pending row without writing. Rows: one; locks: none. None where the row
    /// that a mark leaves is not what the mark says alone: a column is computed, or a trigger changes what is written.
    pub(super) rehearse: Option<String>,
    /// Whether the table has parts.
    pub(super) partitioned: bool,
}

/// Of so many rows that are set aside the hashes fit into the memory that a look has for them, `look_settings`.
pub(super) const MOST_ASIDE: i64 = 2_000_000;

/// Which version of a row this is: the transaction that wrote it.
///
/// It is there for nothing, in every table and every part of one. Each change of a row gives it another one, as do a move to
/// another part and a rewrite of the table; freezing keeps it, and a lock, such as a foreign key's check takes, stands
/// elsewhere. Two committed versions of one row never have the same one, since a transaction commits one of them at most.
const VERSION: &str = "xmin";

/// Of the columns that a row's id is passed in.
const ROW: &str = "pgbaton_row";

impl Statements {
    pub(super) fn new(spec: &TableSpec, shape: &Shape) -> Result<Self, Error> {
        let parts = Parts { spec, shape };
        Ok(Self {
            look: parts.look(),
            fetch: parts.fetch()?,
            mark: parts.mark()?,
            mark_changed: parts.mark_changed()?,
            still: parts.still()?,
            behind: parts.behind(),
            rehearse: parts.rehearse(),
            partitioned: shape.is_partitioned(),
        })
    }
}

struct Parts<'a> {
    spec: &'a TableSpec,
    shape: &'a Shape,
}

impl Parts<'_> {
    fn look(&self) -> String {
        let (ids, lane, table, pending) = (self.ids(), self.lane(), self.rows(), self.pending());
        let order = self.order();
        let texts = self.spec.id.iter().map(|id| format!("({}) collate \"C\"", self.id_text(id)));
        let texts = texts.collect::<Vec<_>>().join(", ");
        // Another row of the same hash would wait until the one that is set aside is through: one of some 10^14 does.
        let hash = format!("pg_catalog.hash_array_extended(array[{texts}], 0)");
        format!(
            "select {ids}, {lane} as pgbaton_lane\nfrom {table}\nwhere {pending}\n\
             and ($2::integer[] operator(pg_catalog.=) '{{}}' or {lane} = any($2::integer[]))\n\
             and ($4::text is null or (not ({hash} operator(pg_catalog.=) any (select pgbaton_parked.row_hash from pgbaton.parked pgbaton_parked\n  \
             where pgbaton_parked.relay operator(pg_catalog.=) $4::text and pgbaton_parked.row_id is not null limit {MOST_ASIDE}))\n\
             and ($5::boolean or not exists (select from pgbaton.parked pgbaton_parked\n  \
             where pgbaton_parked.relay operator(pg_catalog.=) $4::text and pgbaton_parked.row_id is not null \
             and pgbaton_parked.row_hash operator(pg_catalog.=) {hash}))))\norder by {order} limit $3::bigint"
        )
    }

    fn fetch(&self) -> Result<String, Error> {
        let (table, pending, hash) = (self.rows(), self.still_pending(), self.hash());
        let (given, same) = (self.given(2, true), self.same(ROW)?);
        let created_at = match &self.spec.created_at {
            Some(column) => format!("coalesce({}, pg_catalog.clock_timestamp())", self.time(column)),
            None => "pg_catalog.clock_timestamp()".to_owned(),
        };
        let topic = self.text(Some(&self.spec.topic));
        let (key, headers) = (self.text(self.spec.key.as_ref()), self.headers());
        let (bytes, json) = self.payload();
        let (version, itself) = (self.version(), self.itself());
        let size = ["topic", "key", "headers", "bytes", "json"]
            .map(|part| format!("coalesce(pg_catalog.octet_length(w.pgbaton_{part}), 0)::bigint"))
            .join(" + ");
        let inline = |part| format!("case when z.size <= $1::integer then w.pgbaton_{part} end");
        let parts = ["topic", "key", "headers", "bytes", "json"].map(inline).join(",\n  ");
        Ok(format!(
            "select {ROW}.pgbaton_n, w.pgbaton_hash, z.size, w.pgbaton_created_at,\n  {parts},\n  w.pgbaton_version, {itself}\nfrom {given}\n\
             cross join lateral (\nselect {hash} as pgbaton_hash, {created_at} as pgbaton_created_at,\n\
             {topic} as pgbaton_topic, {key} as pgbaton_key, {headers} as pgbaton_headers,\n\
             {bytes} as pgbaton_bytes, {json} as pgbaton_json, {version} as pgbaton_version\nfrom {table}\nwhere {same} and {pending}\noffset 0) w\n\
             cross join lateral (select least(2147483647, {size})::integer as size) z"
        ))
    }

    fn mark(&self) -> Result<String, Error> {
        let (arrays, names, ids) = (self.arrays(10), self.names(), self.ids());
        let (order, marked) = (self.each("r"), self.each("k"));
        let change = self.change()?;
        let unchanged =
            format!("(pgbaton_due.pgbaton_version is null or pgbaton_due.pgbaton_version = {})", self.version());
        let none = vec!["null::text"; self.spec.id.len()].join(", ");
        let (pending, itself) = (self.still_pending(), self.itself());
        Ok(format!(
            "with pgbaton_here as materialized (\n  select pgbaton.incarnation() as pgbaton_incarnation\n\
             ), pgbaton_mine as materialized (\n\
               select d.*, coalesce(n.batch >= d.batch, false) as had\n  \
               from unnest($4::integer[], $5::bigint[], $6::bigint[], $7::bigint[]) as d(lane, epoch, seq, batch)\n    \
                 join pgbaton_here h on h.pgbaton_incarnation = $3::text\n    \
                 join pgbaton.lane l on l.relay = $1::text and l.lane = d.lane and l.owner = $2::uuid and l.epoch = d.epoch\n    \
                 join pgbaton.newest n on n.relay = l.relay and n.lane = l.lane\n\
             ), pgbaton_due as materialized (\n  \
               select {order}, r.pgbaton_version\n  \
               from unnest($8::integer[], $9::bigint[], {arrays}) as r(pgbaton_lane, pgbaton_version, {names})\n    \
                 join pgbaton_mine m on m.lane = r.pgbaton_lane and not m.had\n  order by {order}\n\
             ), pgbaton_marked as (\n{change}\nand {unchanged}\nreturning {ids}, {pending} as pgbaton_pending\n\
             ), pgbaton_written as (\n  \
               insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch)\n  \
               select p.leaf, $1::text, m.lane, m.epoch, m.seq, m.batch from pgbaton_mine m, pgbaton.position_leaf p\n  \
               where not m.had on conflict do nothing\n)\n\
             select h.pgbaton_incarnation as incarnation, m.lane, m.had, t.relhastriggers or t.relkind = 'p', {itself},\n  pg_catalog.row_security_active(t.oid), {none}\n\
             from pgbaton_here h left join pgbaton_mine m on true\n  \
               left join pg_catalog.pg_class t on t.oid = {itself}\n\
             union all select null, null, null, k.pgbaton_pending, null, null, {marked} from pgbaton_marked k"
        ))
    }

    fn mark_changed(&self) -> Result<String, Error> {
        let (arrays, names, order) = (self.arrays(1), self.names(), self.each("r"));
        let (change, ids, unnest) = (self.change()?, self.ids(), self.unnest());
        Ok(format!(
            "with pgbaton_due as materialized (\n  \
               select {order} from {unnest}({arrays}) as r({names}) order by {order}\n)\n{change}\nreturning {ids}"
        ))
    }

    /// The mark itself, of the rows in `pgbaton_due` that are still pending.
    fn change(&self) -> Result<String, Error> {
        let (table, pending, same) = (self.rows(), self.still_pending(), self.same("pgbaton_due")?);
        let change = match &self.spec.mark {
            Mark::Set(columns) => {
                let set = columns.iter().map(|(column, to)| format!("{} = (\n{to}\n)", quoted(column)));
                format!("update {table} set {}\nfrom pgbaton_due", set.collect::<Vec<_>>().join(", "))
            }
            Mark::Delete => format!("delete from {table} using pgbaton_due"),
        };
        Ok(format!("{change}\nwhere {same} and {pending}"))
    }

    fn still(&self) -> Result<String, Error> {
        let (table, pending, given, same) = (self.rows(), self.still_pending(), self.given(1, false), self.same(ROW)?);
        let ids = self.each(ROW);
        Ok(format!(
            "select {ids}\nfrom {given}\ncross join lateral (\nselect from {table}\nwhere {same} and {pending}\noffset 0) w"
        ))
    }

    fn behind(&self) -> String {
        let (table, pending, order) = (self.rows(), self.pending(), self.order());
        let at =
            self.spec.created_at.as_ref().map_or_else(|| "null::timestamptz".to_owned(), |column| self.time(column));
        format!(
            "select pg_catalog.count(*) as rows,\n\
             extract(epoch from pg_catalog.clock_timestamp()\n  \
               - pg_catalog.min(n.pgbaton_at) filter (where pg_catalog.isfinite(n.pgbaton_at)))::float8 as oldest\n\
             from (select {at} as pgbaton_at\nfrom {table}\nwhere {pending}\norder by {order} limit 10000) n"
        )
    }

    /// A moment. A time without a zone is taken for UTC, whatever the session is set to.
    fn time(&self, column: &str) -> String {
        let value = self.column(column);
        match self.shape.kind(column) {
            Some("timestamp") => format!("({value} at time zone 'UTC')"),
            _ => format!("{value}::timestamptz"),
        }
    }

    /// The row as it would be after the mark stands under the table's own name.
    fn rehearse(&self) -> Option<String> {
        let Mark::Set(columns) = &self.spec.mark else { return None };
        if self.shape.changes_on_its_own() {
            return None;
        }
        let (table, name, pending) = (self.rows(), quoted(&self.spec.table.name), self.pending());
        let after = self.shape.columns().map(|(column, of)| match columns.get(column) {
            Some(to) => format!("(\n{to}\n)::{} as {}", of.type_name, quoted(column)),
            None => quoted(column),
        });
        let after = after.collect::<Vec<_>>().join(", ");
        Some(format!(
            "select pg_catalog.count(*) as pending from (\nselect {after}\nfrom (select * from {table}\nwhere {pending}\nlimit 1) as {name}\n\
             ) as {name}\nwhere {pending}"
        ))
    }

    fn pending(&self) -> String {
        format!("(\n{}\n)", self.spec.pending)
    }

    /// Of rows that are asked for by their ids. The same, but no index is chosen for it: where the statistics are of a time
    /// when nothing was pending, the index of what is pending looks as good as the one on the id, and all of it would be
    /// walked for each row.
    fn still_pending(&self) -> String {
        format!("case when {} then true else false end", self.pending())
    }

    fn column(&self, column: &str) -> String {
        format!("{}.{}", quoted(&self.spec.table.name), quoted(column))
    }

    /// The id's columns as texts.
    fn ids(&self) -> String {
        let ids = self.spec.id.iter().enumerate();
        ids.map(|(n, id)| format!("{} as pgbaton_{}", self.id_text(id), n + 1)).collect::<Vec<_>>().join(", ")
    }

    /// A text that names the same value whatever the session is set to. A time's own text depends on that; what has no such
    /// form (infinity, or a date before our era) keeps its own.
    fn id_text(&self, column: &str) -> String {
        let value = self.column(column);
        let (utc, form) = match self.shape.kind(column) {
            Some("timestamptz") => (" at time zone 'UTC'", r#"YYYY-MM-DD"T"HH24:MI:SS.US"Z""#),
            Some("timestamp") => ("", r#"YYYY-MM-DD"T"HH24:MI:SS.US"#),
            Some("date") => ("", "YYYY-MM-DD"),
            _ => return format!("{value}::text"),
        };
        format!(
            "case when pg_catalog.isfinite({value}) and {value} operator(pg_catalog.>) '0001-01-02' \
             and {value} operator(pg_catalog.<) '9999-12-30' then pg_catalog.to_char({value}{utc}, '{form}') else {value}::text end"
        )
    }

    /// The id's columns of a row that is passed along, by its alias.
    fn each(&self, of: &str) -> String {
        (1..=self.spec.id.len()).map(|n| format!("{of}.pgbaton_{n}")).collect::<Vec<_>>().join(", ")
    }

    /// The table's own rows: what inherits from it has no part in its unique index.
    fn rows(&self) -> String {
        let table = &self.spec.table;
        if self.shape.is_partitioned() { table.to_string() } else { format!("only {table}") }
    }

    /// Which table the server takes the name for in this statement: its lock keeps it that one.
    fn itself(&self) -> String {
        format!("{}::pg_catalog.regclass::oid", literal(&self.spec.table.to_string()))
    }

    fn version(&self) -> String {
        format!("{}.{VERSION}::text::bigint", quoted(&self.spec.table.name))
    }

    fn names(&self) -> String {
        (1..=self.spec.id.len()).map(|n| format!("pgbaton_{n}")).collect::<Vec<_>>().join(", ")
    }

    /// Parameters from this number on.
    fn arrays(&self, first: usize) -> String {
        (0..self.spec.id.len()).map(|n| format!("${}::text[]", first + n)).collect::<Vec<_>>().join(", ")
    }

    /// Rows that are given by their ids.
    fn given(&self, first: usize, numbered: bool) -> String {
        let (arrays, names, unnest) = (self.arrays(first), self.names(), self.unnest());
        match numbered {
            true => format!("{unnest}({arrays}) with ordinality as {ROW}({names}, pgbaton_n)"),
            false => format!("{unnest}({arrays}) as {ROW}({names})"),
        }
    }

    /// Of arrays of an id's columns alone. Only the bare name stands for several functions, and then for those of the server.
    fn unnest(&self) -> &'static str {
        match self.spec.id.len() {
            1 => "pg_catalog.unnest",
            _ => "unnest",
        }
    }

    /// The table's row is the one that is given there.
    fn same(&self, given: &str) -> Result<String, Error> {
        let mut all = Vec::new();
        for (n, id) in self.spec.id.iter().enumerate() {
            // As the column's own type: with another one the index may not be used.
            let type_name = &self.shape.column(id)?.type_name;
            let (column, n) = (self.column(id), n + 1);
            all.push(format!("{column} operator(pg_catalog.=) {given}.pgbaton_{n}::{type_name}"));
        }
        Ok(all.join(" and "))
    }

    fn order(&self) -> String {
        let further = self.spec.id.iter().filter(|id| !self.spec.order.contains(id));
        self.spec.order.iter().chain(further).map(|column| self.column(column)).collect::<Vec<_>>().join(", ")
    }

    /// The low bits of the hash.
    fn lane(&self) -> String {
        format!("({} & ($1::integer - 1)::bigint)::integer", self.hash())
    }

    /// Of the key, by the same function as in the outbox; where there is none, of the id.
    fn hash(&self) -> String {
        let ids: Vec<String> = self.spec.id.iter().map(|id| self.id_text(id)).collect();
        let id = match ids.as_slice() {
            [one] => one.clone(),
            several => format!("pg_catalog.jsonb_build_array({})::text", several.join(", ")),
        };
        let of = match &self.spec.key {
            Some(key) => format!("coalesce({}, {id})", self.readable(key)),
            None => id,
        };
        format!("pg_catalog.hashtextextended({of} collate \"C\", 0)")
    }

    /// The key, and none where it cannot be read: a look must not fail for one row. So such a row is in the lane of its id, and
    /// its fetch, which reads the key without this care, holds that lane and names the row.
    fn readable(&self, key: &Value) -> String {
        let Value::Path { column, path } = key else { return self.text(Some(key)) };
        let (value, path) = (self.column(column), literal(path));
        let found = format!(
            "(pg_catalog.jsonb_path_query_first({value}::jsonb, {path}::jsonpath, '{{}}'::jsonb, true) operator(pg_catalog.#>>) '{{}}')"
        );
        match self.shape.kind(column) {
            Some("jsonb") => found,
            _ => format!("case when pg_catalog.pg_input_is_valid({value}::text, 'jsonb') then {found} end"),
        }
    }

    fn text(&self, value: Option<&Value>) -> String {
        match value {
            None => "null::text".to_owned(),
            Some(Value::Column(column)) => format!("{}::text", self.column(column)),
            Some(Value::Path { column, path }) => {
                format!("({} operator(pg_catalog.#>>) '{{}}')", self.found_at(column, path))
            }
            Some(Value::Constant(text)) => format!("{}::text", literal(text)),
        }
    }

    fn found_at(&self, column: &str, path: &str) -> String {
        format!("pg_catalog.jsonb_path_query_first({}::jsonb, {}::jsonpath)", self.column(column), literal(path))
    }

    fn json(&self, value: &Value) -> String {
        match value {
            Value::Column(column) => self.column(column),
            Value::Path { column, path } => self.found_at(column, path),
            Value::Constant(text) => format!("{}::jsonb", literal(text)),
        }
    }

    /// A text: of a column of type json byte for byte, where there is nothing to be added.
    fn headers(&self) -> String {
        let mut each = String::new();
        for (name, value) in &self.spec.header {
            let _ = write!(each, "{}, {}, ", literal(name), self.text(Some(value)));
        }
        let each = each.trim_end_matches(", ");
        let all = self.spec.headers.as_ref().map(|value| self.json(value));
        match (all, each.is_empty()) {
            (None, true) => "null::text".to_owned(),
            (Some(all), true) => format!("{all}::text"),
            (None, false) => format!("pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object({each}))::text"),
            (Some(all), false) => format!(
                "(coalesce(nullif({all}::jsonb, 'null'::jsonb), '{{}}') || pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object({each})))::text"
            ),
        }
    }

    /// As bytes and as JSON: one of them is null.
    fn payload(&self) -> (String, String) {
        let none = ("null::bytea".to_owned(), "null::text".to_owned());
        let bytes = |text: String| format!("pg_catalog.convert_to({text}, 'UTF8')");
        match &self.spec.payload {
            None => none,
            Some(value @ Value::Path { .. }) => (none.0, format!("{}::text", self.json(value))),
            Some(value @ Value::Constant(_)) if self.spec.payload_is_json => (none.0, self.text(Some(value))),
            Some(value @ Value::Constant(_)) => (bytes(self.text(Some(value))), none.1),
            Some(Value::Column(column)) => match self.shape.kind(column) {
                Some("bytea") if self.spec.payload_is_json => {
                    (none.0, format!("pg_catalog.convert_from({}, 'UTF8')", self.column(column)))
                }
                Some("bytea") => (self.column(column), none.1),
                Some("json" | "jsonb") => (none.0, format!("{}::text", self.column(column))),
                _ if self.spec.payload_is_json => (none.0, format!("{}::text", self.column(column))),
                _ => (bytes(format!("{}::text", self.column(column))), none.1),
            },
        }
    }
}
