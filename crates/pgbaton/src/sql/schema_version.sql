-- The newest migration that was applied. Rows: one; null if there is none. Locks: none.
select pg_catalog.max(version) from pgbaton.migration
