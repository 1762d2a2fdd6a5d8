-- How many messages of a lane stand before one in the log that its S does not see: of the next 20,000 numbers that are there.
-- Parameters: $1 above this number, $2 below this number, $3 S, $4 number of lanes, $5 the lane.
-- Rows: one: how many, and how many messages were looked at. Locks: none. Relies on: the index on id.
select pg_catalog.count(*) filter (
         where not pg_catalog.pg_visible_in_snapshot(w.xid, $3::text::pg_snapshot) and (w.hash & ($4::integer - 1))::integer = $5::integer) as ahead,
       pg_catalog.count(*) as looked
from (select o.xid, o.hash from pgbaton.outbox o where o.id > $1::bigint and o.id < $2::bigint order by o.id limit 20000) w
