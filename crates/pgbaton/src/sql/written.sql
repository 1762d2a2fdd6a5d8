-- What a target needs besides T and its ceiling, in a statement after both: up to where the log was written and whether it
-- is on disk that far, and which segments hold messages above $1. What T sees above $1
-- is in one of these.
-- Parameters: $1 an id at or below every floor that T is taken for. Rows: one. Locks: none.
-- Relies on: the index on id, once in each leaf.
select pg_catalog.pg_current_wal_insert_lsn()::text as written,
       pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn() as flushed,
       pgbaton.segments_above($1::bigint) as segments
