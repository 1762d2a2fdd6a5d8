-- For how long the oldest dead message of each relay has been dead, and for how long the attempt that is due first has been.
-- Parameters: $1 the relays. Rows: one for each relay, null where there is none. Locks: none.
-- Relies on: the indexes on (relay, dead_at) and (relay, next_at).
select r.name as relay,
  extract(epoch from pg_catalog.clock_timestamp() - (
    select p.dead_at from pgbaton.parked p
    where p.relay = r.name and p.dead_at is not null and not p.given_up order by p.dead_at limit 1))::float8 as dead,
  extract(epoch from pg_catalog.clock_timestamp() - (
    select case when p.next_at > 'epoch' then p.next_at else greatest(p.parked_at, p.last_at) end from pgbaton.parked p
    where p.relay = r.name and p.next_at < 'infinity' order by p.next_at limit 1))::float8 as due
from pg_catalog.unnest($1::text[]) as r(name)
