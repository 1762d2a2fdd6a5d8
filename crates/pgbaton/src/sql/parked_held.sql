-- Which of these keys have a message that was set aside, which later ones wait behind.
-- Parameters: $1 the relay, $2 the keys' hashes. Rows: the hashes. Locks: none. Relies on: the index on (relay, hash, number).
select h.hash from pg_catalog.unnest($2::bigint[]) as h(hash)
where exists (select from pgbaton.parked p where p.relay = $1::text and p.hash = h.hash and p.holds)
