-- Messages that were set aside have been delivered, or are no longer there. A later statement of the transaction that writes the
-- position. Parameters: $1 the relay, $2 their ids. Rows: none. Locks: their rows.
delete from pgbaton.parked p using pg_catalog.unnest($2::text[]) as d(id) where p.relay = $1::text and p.id = d.id
