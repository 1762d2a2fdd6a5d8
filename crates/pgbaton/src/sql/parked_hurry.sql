-- Messages that wait for their next attempt, or for the time they are to be delivered at, are due at once,
-- but for paused ones.
-- Parameters: $1 the relay, $2 their ids. Rows: one for each that waited, with the key's hash. Locks: their rows.
update pgbaton.parked p set next_at = pgbaton.next_try(p.relay, p.key, p.topic, pgbaton.after(0)), deliver_at = null
where p.relay = $1::text and p.id = any($2::text[]) and p.next_at > pg_catalog.clock_timestamp()
  and pgbaton.next_try(p.relay, p.key, p.topic, p.created_at) < 'infinity' returning p.hash
