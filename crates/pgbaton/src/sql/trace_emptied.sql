-- The greatest number of a message that was in a segment when that was emptied last; null if none was. In a statement after the one that
-- did not find a message: it may have been emptied in between. What was emptied before a re-base is not known any more.
-- Rows: one. Locks: none.
select (select pg_catalog.max(s.emptied_id) from pgbaton.segment s) as emptied_id,
       exists (select from pgbaton.audit a where a.what = 'rebase') as rebased
