-- How many messages of each relay are set aside, and how many are dead: up to 10,000 of each.
-- Parameters: $1 the relays. Rows: one for each relay. Locks: none. Relies on: the indexes on (relay, hash, number) and
-- (relay, dead_at).
select r.name as relay,
  (select pg_catalog.count(*) from (
     select from pgbaton.parked p where p.relay = r.name and p.holds and p.dead_at is null limit 10000) a) as parked,
  (select pg_catalog.count(*) from (
     select from pgbaton.parked p where p.relay = r.name and p.dead_at is not null and not p.given_up limit 10000) d) as dead
from pg_catalog.unnest($1::text[]) as r(name)
