-- From here on no lane of any relay is registered, split or set back. Before `lanes_lock`.
-- Rows: one. Locks: that of the relays, exclusively, until the transaction ends.
select pg_catalog.pg_advisory_xact_lock(pgbaton.relays_lock())
