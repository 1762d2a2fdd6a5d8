-- Inserts one message, as an application would.
-- Parameters: $1 topic, $2 key, $3 headers, $4 JSON payload, $5 binary payload, $6 how many seconds later it is to be delivered
-- (null: at once). Rows: one.
insert into pgbaton.outbox (topic, key, headers, payload_json, payload, deliver_at)
values ($1::text, $2::text, $3::text::json, $4::text::json, $5::bytea,
        pg_catalog.statement_timestamp() + $6::float8 * interval '1 s')
returning id, message_id::text as message_id
