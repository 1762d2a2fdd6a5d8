-- Messages that are due, each with those that wait behind it, up to one that is dead or to be delivered later, in the order of their keys. Nothing of them but what tells which
-- ones fit.
-- Parameters: $1 the relay, $2 the number of lanes, $3 the lanes, $4 how many keys, $5 how many messages of each, $6 of all.
-- Rows: id, hash, size, attempts, when it is due (null: behind another one), seconds since the first attempt, the row's id, whether it is tried alone.
-- Locks: none. Relies on: the indexes on (relay, next_at) and (relay, hash, number).
select f.id, f.hash, f.size, f.attempts, f.next_at,
       coalesce(extract(epoch from pg_catalog.now() - f.first_at), 0)::float8 as since, f.row_id, f.suspect
from (
  select p.hash, p.number, p.next_at from pgbaton.parked p
  where p.relay = $1::text and p.next_at <= pg_catalog.now()
    and (p.hash & ($2::integer - 1))::integer = any($3::integer[])
  order by p.next_at limit $4::bigint
) h cross join lateral (
  select c.* from (
    select b.*, pg_catalog.bool_or(b.dead_at is not null or coalesce(b.deliver_at > pg_catalog.now(), false))
                 over (order by b.number) as stops
    from (
      select w.* from pgbaton.parked w where w.relay = $1::text and w.hash = h.hash and w.holds and w.number >= h.number
      order by w.relay, w.hash, w.number limit $5::bigint
    ) b
  ) c where not c.stops
) f
order by h.next_at, h.number, f.number limit $6::bigint
