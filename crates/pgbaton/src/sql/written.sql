-- Up to where the log was written, in a statement after T and the ceiling were read, and whether it is on disk that far.
-- Rows: one. Locks: none.
select pg_catalog.pg_current_wal_insert_lsn()::text as written,
       pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn() as flushed
