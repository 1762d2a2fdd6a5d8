-- Whether this is the server that is meant: asked once on each new connection, in the simple protocol.
-- Rows: one. Locks: none.
select pg_catalog.pg_is_in_recovery() as in_recovery,
       pg_catalog.current_setting('transaction_read_only') as read_only
