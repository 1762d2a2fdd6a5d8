-- One large message whole.
-- Parameters: $1 its id.
-- Rows: one; none would be a row that vanished while it was needed. Locks: none. Relies on: the index on id, the
-- only one with that order: with `id = …` the order says nothing, and the planner may take the other one.
select id, hash, size, message_id, created_at,
       topic, key, headers, payload, payload_json
from pgbaton.outbox where id >= $1::bigint and id <= $1::bigint order by id
