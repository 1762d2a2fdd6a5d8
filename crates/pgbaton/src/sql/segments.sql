-- Every segment: how large it is, whether it holds anything, whether new messages go to it, and when it was emptied last.
-- Rows: one each. Locks: each segment, shared and only for a moment; touches no message.
select s.segment, pg_catalog.pg_total_relation_size(c.oid) as bytes, pg_catalog.pg_relation_size(c.oid) > 0 as filled,
       s.segment = pgbaton.segment_at(pg_catalog.clock_timestamp()) as in_use,
       extract(epoch from pg_catalog.clock_timestamp() - s.emptied_at)::float8 as emptied_seconds_ago
from pgbaton.segment s join pg_catalog.pg_class c on c.oid = ('pgbaton.outbox_' || s.segment)::regclass
order by s.segment
