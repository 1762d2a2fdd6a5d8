-- Whether the log is on disk up to there: only then do T and its ceiling survive a crash of the server.
-- Parameters: $1 the log position that `written` gave. Rows: one. Locks: none.
select pg_catalog.pg_current_wal_flush_lsn() >= $1::text::pg_lsn as flushed, pgbaton.incarnation() as incarnation
