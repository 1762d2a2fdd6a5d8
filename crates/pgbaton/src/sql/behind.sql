-- How far behind a relay is, whoever runs its lanes: numbers between the lane that is furthest behind and the log's last,
-- and the age of the oldest message among the next 20,000 that its lane has not passed (null: there is none).
-- A lane that is held stands where its window began, which is no longer than that.
-- Parameters: $1 the relay. Rows: one. Locks: none. Relies on: the index on id.
-- Nothing is looked at where everything has been passed. Lanes are looked up in an array for each number of lanes there is: more than one only while they are being split.
with lane as materialized (
  select n.lane, n.lanes, greatest(n.floor, n.last) as passed from pgbaton.newest n where n.relay = $1::text
), least as materialized (
  select coalesce(pg_catalog.min(passed), 0) as passed from lane
), of as materialized (
  select d.lanes, array(select coalesce(l.passed, 9223372036854775807) from pg_catalog.generate_series(0, d.lanes - 1) n
                        left join lane l on l.lane = n and l.lanes = d.lanes order by n) as passed
  from (select distinct lanes from lane) d
)
select greatest(q.last_value - least.passed, 0) as ids,
       case when q.last_value > least.passed then (
         select extract(epoch from pg_catalog.clock_timestamp() - w.created_at)::float8
         from (select o.id, o.hash, o.created_at from pgbaton.outbox o
               where o.id > least.passed order by o.id limit 20000) w, of
         where w.id > of.passed[(w.hash & (of.lanes - 1)) + 1]
         order by w.id limit 1) end as oldest
from least, pgbaton.outbox_id_seq q
