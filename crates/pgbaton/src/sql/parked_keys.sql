-- The keys that later messages wait behind.
-- Parameters: $1 the relay. Rows: the keys' hashes, some of them more than once. Locks: none.
-- Relies on: the index on (relay, hash, number), of which each entry is walked.
select p.hash from pgbaton.parked p where p.relay = $1::text and p.holds
