-- Takes a target T. Alone in its transaction, which has no transaction id: else its own unfinished rows counted as seen.
-- Rows: one. Locks: none; touches no table.
select pg_catalog.pg_current_snapshot()::text as snapshot, pgbaton.incarnation() as incarnation,
       pg_catalog.pg_current_xact_id_if_assigned() is null as alone
