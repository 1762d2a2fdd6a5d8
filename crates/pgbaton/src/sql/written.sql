-- Up to where the log was written, in a statement after T and the ceiling were read. Rows: one. Locks: none.
select pg_catalog.pg_current_wal_insert_lsn()::text as written
