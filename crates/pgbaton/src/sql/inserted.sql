-- Up to where the log was written, and whether it is on disk that far: then what was visible before survives a crash.
-- Rows: one. Locks: none.
select pg_catalog.pg_current_wal_insert_lsn()::text as written,
       pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn() as flushed,
       (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint as clock,
       pgbaton.incarnation() as incarnation
