-- How the ring is set. Rows: one. Locks: none.
select segments, seconds, extract(epoch from retention)::bigint as retention_seconds from pgbaton.ring
