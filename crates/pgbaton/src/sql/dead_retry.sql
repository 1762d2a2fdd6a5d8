-- Dead messages are to be tried again, as if they never had been.
-- Parameters: $1 the relay, $2 their ids. Rows: one for each that was dead, with the key's hash. Locks: their rows.
update pgbaton.parked p set dead_at = null, holds = true, attempts = 0, first_at = null, trying = null, deaths = 0, copied = false
where p.relay = $1::text and p.id = any($2::text[]) and p.dead_at is not null and not p.given_up returning p.hash
