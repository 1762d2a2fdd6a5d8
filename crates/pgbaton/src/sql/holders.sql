-- Transactions that hold a lock on a segment. One that shows up in two looks is no short one: a dump, a long report, a writer
-- that has not committed. Nobody is made to queue behind it. Parameters: $1 the segment. Rows: one each. Locks: none.
select distinct l.virtualtransaction as holder from pg_catalog.pg_locks l
where l.locktype = 'relation' and l.granted
  and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
  and l.relation = ('pgbaton.outbox_' || $1::smallint)::regclass and l.pid is distinct from pg_catalog.pg_backend_pid()
