-- These messages were tried alone, and who did it lives. A later statement of the transaction that writes what became of it.
-- Parameters: $1 the relay, $2 the replica, $3 their ids. Rows: none. Locks: their rows.
update pgbaton.parked p set trying = null where p.relay = $1::text and p.id = any($3::text[]) and p.trying = $2::uuid
