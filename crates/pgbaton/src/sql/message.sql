-- One large message whole.
-- Parameters: $1 its id.
-- Rows: one, as `window` has them; none would be a row that vanished while it was needed. Locks: none. Relies on: the index on id, the
-- only one with that order: with `id = …` the order says nothing, and the planner may take the other one.
select id, hash, size, message_id, created_at,
       topic, key, headers, payload, payload_json,
       case when deliver_at > pg_catalog.statement_timestamp() then
         least(extract(epoch from deliver_at) - extract(epoch from pg_catalog.statement_timestamp()), 1e9)::float8 end as later
from pgbaton.outbox where id >= $1::bigint and id <= $1::bigint order by id
