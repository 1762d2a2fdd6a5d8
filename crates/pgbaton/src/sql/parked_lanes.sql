-- Which of these lanes have messages that were set aside, and how soon one of theirs is due.
-- Parameters: $1 the relay, $2 the number of lanes, $3 the lanes.
-- Rows: one: the lanes, milliseconds, which may be negative (null if none is due ever, or all that are left are paused), and how many rows of an adopted table are
-- set aside, up to 1,000,000; and whether the server's clock was ahead of where it is now when some of them were written. Locks: none.
-- Relies on: the index on the low twelve bits of the hash, of which each lane has some, on (relay, next_at), and on when a head was
-- written.
select array(
    select l.lane from pg_catalog.unnest($3::integer[]) as l(lane)
    where exists (select from pgbaton.parked p where p.relay = $1::text and p.holds)
      and exists (
        select from pg_catalog.generate_series(l.lane::bigint, 4095, $2::bigint) as b(bits)
        where exists (select from pgbaton.parked p where p.relay = $1::text and p.holds and p.hash & 4095 = b.bits))) as lanes,
  (select extract(epoch from case when p.next_at < 'infinity' then p.next_at - pg_catalog.now() end) * 1000
   from pgbaton.parked p
   where p.relay = $1::text and p.next_at is not null and (p.hash & ($2::integer - 1))::integer = any($3::integer[])
   order by p.next_at limit 1)::float8 as due,
  (select pg_catalog.count(*) from (
     select from pgbaton.parked p where p.relay = $1::text and p.row_id is not null limit 1000000) r) as count,
  exists (select from pgbaton.parked p
          where p.relay = $1::text and p.next_at is not null
            and greatest(p.parked_at, p.last_at) > pg_catalog.now() + interval '1 s') as stepped
