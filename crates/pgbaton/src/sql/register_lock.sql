-- Before a relay is registered, split or set back: nobody empties a segment meanwhile, on the ground that every lane of
-- every relay has passed it. Rows: one. Locks: shared with others that do the same, until the transaction ends.
select pg_catalog.pg_advisory_xact_lock_shared(pgbaton.relays_lock())
