-- A new replica makes itself known. Its lease begins when this was sent.
-- Parameters: $1 its id, $2 its name, $3 its version, $4 the relays it runs, $5 its ttl in milliseconds.
-- Rows: one, the incarnation. Locks: its own row.
insert into pgbaton.replica (id, name, version, relays, ttl_ms)
values ($1::uuid, $2::text, $3::text, $4::text[], $5::bigint)
returning pgbaton.incarnation() as incarnation
