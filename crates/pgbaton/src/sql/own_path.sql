-- From here on the transaction names nothing of its user's: no function or operator of others is taken for one of the server's.
-- Rows: one. Locks: none.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)
