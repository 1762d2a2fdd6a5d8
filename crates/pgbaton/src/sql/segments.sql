-- Every segment: how large it is, whether it holds anything, whether it takes its turn, and whether new messages go to it.
-- Rows: one each. Locks: each segment, shared and only for a moment; touches no message.
select s.segment, pg_catalog.pg_total_relation_size(c.oid) as bytes, pg_catalog.pg_relation_size(c.oid) > 0 as filled,
       s.segment < (select r.segments from pgbaton.ring r) as in_ring,
       s.segment = pgbaton.segment_at(pg_catalog.clock_timestamp()) as in_use
from pgbaton.segment s join pg_catalog.pg_class c on c.oid = ('pgbaton.outbox_' || s.segment)::regclass
order by s.segment
