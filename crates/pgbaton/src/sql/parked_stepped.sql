-- Messages that were written while the server's clock was ahead of where it is now: the times of their next attempts mean nothing, and they are
-- due. What is to be delivered at a later time still is.
-- Parameters: $1 the relay. Rows: one for each. Locks: their rows. Relies on: the index on when a head was written.
update pgbaton.parked p
set next_at = case when p.next_at = 'infinity' then p.next_at else greatest(pgbaton.after(0), p.deliver_at) end,
    parked_at = least(p.parked_at, pg_catalog.clock_timestamp()), last_at = least(p.last_at, pg_catalog.clock_timestamp())
where p.relay = $1::text and p.next_at is not null
  and greatest(p.parked_at, p.last_at) > pg_catalog.now() + interval '1 s'
returning p.id
