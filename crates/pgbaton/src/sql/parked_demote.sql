-- Of these keys only the first message that holds its key may be the one to be tried. Before `parked_next`, which makes it so.
-- Parameters: $1 the relay, $2 the keys' hashes. Rows: none. Locks: the rows it changes. Relies on: the indexes on
-- (relay, hash, number) and (relay, hash).
update pgbaton.parked p set next_at = null
where p.relay = $1::text and p.hash = any($2::bigint[]) and p.next_at is not null
  and exists (select from pgbaton.parked b where b.relay = p.relay and b.hash = p.hash and b.holds and b.number < p.number)
