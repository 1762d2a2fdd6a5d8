-- Registers a relay with all its lanes and their first positions, unless it is registered. A new statement after
-- `register_lock`.
-- Parameters: $1 the relay, $2 the number of lanes, $3 whether it starts at the latest message instead of the earliest, $4 the
-- table that it adopts, quoted, and $5 what its replicas agree about (null: it reads the outbox).
-- Rows: one if it was registered now. Locks: the relay's row, against a second one at the same time.
-- Invariant: every lane of a registered relay has a position, so that "all lanes have passed this" is never empty.
-- The latest: what this statement's snapshot sees has been dealt with. It is on disk once this is, which commits later. Its
-- floor comes from any pair in the table: a pair says something of the log, whoever wrote it down.
with first as materialized (
  select s.snapshot, s.floor, case when $3::boolean and q.is_called then q.last_value else 0 end as last
  from (
    select '1:1:'::pg_snapshot as snapshot, 0 as floor where not $3::boolean
    union all
    select pg_catalog.pg_current_snapshot(), coalesce((select pg_catalog.max(p.l) from pgbaton.position p
           where p.x <= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())), 0)
    where $3::boolean
  ) s, pgbaton.outbox_id_seq q where $4::text is null
  union all
  select null, null, null where $4::text is not null
), relay as (
  insert into pgbaton.relay (name, lanes, adopted, definition)
    values ($1::text, $2::integer, $4::text::regclass::oid, $5::text::jsonb) on conflict (name) do nothing
  returning name
), lanes as (
  insert into pgbaton.lane (relay, lane, lanes)
    select name, n, $2::integer from relay, pg_catalog.generate_series(0, $2::integer - 1) n
  returning relay, lane, epoch
), positions as (
  insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, last)
    select p.leaf, l.relay, l.lane, l.epoch, 0, 0, f.snapshot, f.floor, f.last from lanes l, pgbaton.position_leaf p, first f
)
select name from relay
