-- Transactions that may have written a message that nobody else sees: they hold the lock of whoever writes to the outbox, on it or on one of
-- its segments, have a transaction id, and have not ended. A lock is given back only after what its transaction wrote can be seen. So a
-- message with a number that was given out before this statement, and that a later statement does not see, is of one of these, or will
-- never be there. Those are left out that began to write when larger numbers had been given out: a position's pair (l, x) says so.
-- Parameters: $1 the message's number (null: it is not known).
-- Rows: one each; `pid` is null for a prepared one; since when, who and what are null where this role may not see that. Locks: none.
select w.pid, t.transactionid::text as xid, pgbaton.utc(coalesce(p.prepared, a.xact_start)) as since,
       extract(epoch from pg_catalog.clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8 as age,
       coalesce(p.owner, a.usename)::text as role, nullif(a.application_name, '') as application, a.state, p.gid
from (
  select distinct l.pid, l.virtualtransaction from pg_catalog.pg_locks l
  where l.locktype = 'relation' and l.granted and l.mode = 'RowExclusiveLock' and l.pid is distinct from pg_catalog.pg_backend_pid()
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
    and l.relation in (
      select 'pgbaton.outbox'::regclass::oid union all
      select i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = 'pgbaton.outbox'::regclass)
) w
  cross join lateral (
    -- Its own, and those of its savepoints, which are greater.
    select h.transactionid from pg_catalog.pg_locks h
    where h.locktype = 'transactionid' and h.granted and h.virtualtransaction = w.virtualtransaction and h.pid is not distinct from w.pid
    order by pg_catalog.age(h.transactionid) desc limit 1
  ) t
  left join pg_catalog.pg_stat_activity a on a.pid = w.pid
  left join pg_catalog.pg_prepared_xacts p on w.pid is null and p.transaction::text = t.transactionid::text
  left join lateral (
    select o.x from pgbaton.position o where o.l >= $1::bigint order by o.x limit 1
  ) later on true
where later.x is null or pg_catalog.age(t.transactionid) > pg_catalog.age(later.x::xid)
order by w.pid
