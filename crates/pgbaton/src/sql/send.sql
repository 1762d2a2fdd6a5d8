-- Inserts one message, as an application would.
-- Parameters: $1 topic, $2 key, $3 headers, $4 JSON payload, $5 binary payload. Rows: one.
insert into pgbaton.outbox (topic, key, headers, payload_json, payload)
values ($1::text, $2::text, $3::text::json, $4::text::json, $5::bytea)
returning id, message_id::text as message_id
