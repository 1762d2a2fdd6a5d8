-- Sets the ring, and makes the segments that it lacks. Only the schema's owner may.
-- Parameters: $1 how many segments, $2 seconds of each, $3 seconds of retention. Rows: one. Locks: the outbox, exclusively.
select pgbaton.set_ring($1::integer, $2::integer, $3::bigint * interval '1 second')
