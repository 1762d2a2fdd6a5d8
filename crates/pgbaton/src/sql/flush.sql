-- A synchronous commit of our own, for when nobody else's brings the log to disk.
-- Rows: one. Writes one record and no row.
select pg_catalog.pg_logical_emit_message(true, 'pgbaton', '') is not null as emitted
