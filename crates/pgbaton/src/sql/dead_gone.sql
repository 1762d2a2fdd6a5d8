-- Dead rows of an adopted table are no longer pending. Parameters: $1 the relay, $2 their message ids.
-- Rows: one for each that was dead, with the key's hash. Locks: their rows.
delete from pgbaton.parked p
where p.relay = $1::text and p.id = any($2::text[]) and p.dead_at is not null and p.row_id is not null returning p.hash
