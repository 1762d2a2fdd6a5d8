-- Of these keys the first message that holds its key is the one to be tried, unless it is dead. A new statement of the
-- transaction in which those before it were delivered or given up. Not before it is to be delivered, and not
-- while it is paused.
-- Parameters: $1 the relay, $2 the keys' hashes. Rows: none. Locks: the rows it changes.
-- Relies on: the index on (relay, hash, number).
update pgbaton.parked p set next_at = pgbaton.next_try(p.relay, p.key, p.topic, greatest(pgbaton.after(0), p.deliver_at))
from (select distinct k.hash from pg_catalog.unnest($2::bigint[]) as k(hash)) k cross join lateral (
  select f.id from pgbaton.parked f where f.relay = $1::text and f.hash = k.hash and f.holds
  order by f.relay, f.hash, f.number limit 1
) n
where p.relay = $1::text and p.id = n.id and p.next_at is null and p.dead_at is null
