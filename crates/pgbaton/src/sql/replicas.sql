-- All replicas. Rows: one each. Locks: none.
select id::text as id, name, version, relays, beat, ttl_ms, extract(epoch from pg_catalog.now() - started_at)::float8 as age
from pgbaton.replica order by name, id
