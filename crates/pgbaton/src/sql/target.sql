-- Takes a target T, in a transaction without an id, which is `alone`: else its own unfinished rows counted as seen. What
-- else belongs to T is asked for in later statements, also of the same transaction.
-- Rows: one. Locks: none; touches no table.
select pg_catalog.pg_current_snapshot()::text as snapshot, pgbaton.incarnation() as incarnation,
       pg_catalog.pg_current_xact_id_if_assigned() is null as alone,
       (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint as clock
