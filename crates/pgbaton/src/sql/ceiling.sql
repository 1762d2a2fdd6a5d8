-- The last number given out. A statement after `target`, so that nothing visible in T has a greater id.
-- Before the first message `last_value` is 1 and was not given out.
-- Rows: one. Locks: none.
select case when is_called then last_value else last_value - 1 end as ceiling, pgbaton.incarnation() as incarnation
from pgbaton.outbox_id_seq
