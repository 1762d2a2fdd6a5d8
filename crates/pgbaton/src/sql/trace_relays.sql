-- Every relay, or one, with the lane that a hash falls into: who owns it, and its newest position. A lane is found by its own number of
-- lanes, which are not the same for all while they are split.
-- Parameters: $1 the relay (null: all), $2 the hash (null: no lane).
-- Rows: one for each relay. Locks: none. Relies on: the index on (leaf, relay, lane, epoch, seq).
select r.name, r.adopted, r.definition::text as definition, r.registered_by::text as registered_by, pgbaton.utc(r.registered_at) as registered_at,
       (select pg_catalog.count(*) from pgbaton.replica m where r.name = any(m.relays)) as replicas,
       n.lane, n.lanes, n.lane_epoch as epoch, p.id::text as replica, p.name as replica_name, p.beat, p.ttl_ms, r.name = any(p.relays) as stays,
       n.batch, n.consumed::text as consumed, n.floor, n.target::text as target, n.ceiling, n.last,
       extract(epoch from pg_catalog.clock_timestamp() - n.written_at)::float8 as age
from pgbaton.relay r
  left join pgbaton.newest n on n.relay = r.name and n.lane = ($2::bigint & (n.lanes - 1))::integer
  left join pgbaton.replica p on p.id = n.owner
where $1::text is null or r.name = $1::text
order by r.name
