-- Sessions of this database that have a transaction open, or of which that is all that this role may know: that they hold a transaction
-- id, a snapshot, or a lock on the outbox. Without the texts of their statements, which may hold what a message does.
-- Rows: one each, the one that holds the oldest first. Locks: none.
select a.pid, a.usename::text as role, a.application_name as application, a.state,
       extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8 as age,
       greatest(pg_catalog.age(a.backend_xid), pg_catalog.age(a.backend_xmin))::bigint as behind, h.pid is not null as on_outbox
from pg_catalog.pg_stat_activity a left join (
  select distinct l.pid
  from pg_catalog.pg_locks l join pg_catalog.pg_class c on c.oid = l.relation
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pgbaton'
  where l.locktype = 'relation' and l.granted and c.relname ~ '^outbox(_[0-9]+)?$'
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
) h on h.pid = a.pid
where a.datname = pg_catalog.current_database() and a.usename is not null and a.pid <> pg_catalog.pg_backend_pid()
  and (a.xact_start is not null or a.backend_xid is not null or a.backend_xmin is not null or h.pid is not null)
  and not exists (select from pg_catalog.pg_stat_replication r where r.pid = a.pid)
order by behind desc nulls last, a.pid
