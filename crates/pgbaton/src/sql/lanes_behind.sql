-- Which lanes of a relay have not passed messages that are there: of the next 20,000 messages behind the lane that is furthest behind, the
-- oldest one of each lane. As in `behind`, which asks the same of the relay as a whole.
-- Parameters: $1 the relay. Rows: one for each such lane. Locks: none. Relies on: the index on id.
with lane as materialized (
  select n.lane, n.lanes, greatest(n.floor, n.last) as passed from pgbaton.newest n where n.relay = $1::text
), least as materialized (
  select coalesce(pg_catalog.min(passed), 0) as passed from lane
), of as materialized (
  select d.lanes, array(select coalesce(l.passed, 9223372036854775807) from pg_catalog.generate_series(0, d.lanes - 1) n
                        left join lane l on l.lane = n and l.lanes = d.lanes order by n) as passed
  from (select distinct lanes from lane) d
)
select (w.hash & (of.lanes - 1))::integer as lane,
       extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.min(w.created_at))::float8 as oldest
from least cross join lateral (
  select o.id, o.hash, o.created_at from pgbaton.outbox o where o.id > least.passed order by o.id limit 20000) w, of
where w.id > of.passed[(w.hash & (of.lanes - 1)) + 1]
group by 1
