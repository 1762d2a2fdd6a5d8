-- Which life of which database answers. Null in recovery.
-- Rows: one. Locks: none.
select pgbaton.incarnation() as incarnation
