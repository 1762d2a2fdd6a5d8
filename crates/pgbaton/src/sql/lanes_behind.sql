-- Which lanes of a relay have not dealt with messages that are there, and for how long the oldest one of each has been: of the next 20,000
-- messages behind the lane that is furthest behind, and up to 1,000 of each transaction that some lane's S or T saw running. Unlike `behind`, which
-- goes by numbers alone, this asks of each whether its lane has dealt with it: as in `rebase`.
-- Parameters: $1 the relay. Rows: one for each such lane. Locks: none. Relies on: the indexes on id and on (xid, id).
with lane as materialized (
  select n.lane, n.lanes, greatest(n.floor, n.last) as passed, n.consumed, n.target, n.last from pgbaton.newest n where n.relay = $1::text
), running as materialized (
  select distinct x.xid from lane l cross join lateral (
    select pg_catalog.pg_snapshot_xip(l.consumed) union all select pg_catalog.pg_snapshot_xip(l.target)) x(xid)
), message as (
  select w.id, w.xid, w.hash, w.created_at
  from (select coalesce(pg_catalog.min(l.passed), 0) as passed from lane l) least cross join lateral (
    select o.id, o.xid, o.hash, o.created_at from pgbaton.outbox o where o.id > least.passed order by o.id limit 20000) w
  union
  select s.id, s.xid, s.hash, s.created_at
  from running r cross join lateral (
    select o.id, o.xid, o.hash, o.created_at from pgbaton.outbox o where o.xid = r.xid order by o.id limit 1000) s
)
select l.lane, extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.min(m.created_at))::float8 as oldest
from message m cross join (select distinct l.lanes from lane l) of
  join lane l on l.lanes = of.lanes and l.lane = (m.hash & (of.lanes - 1))::integer
where (pg_catalog.pg_visible_in_snapshot(m.xid, l.consumed)
       or (m.id <= l.last and pg_catalog.pg_visible_in_snapshot(m.xid, l.target))) is not true
group by l.lane
