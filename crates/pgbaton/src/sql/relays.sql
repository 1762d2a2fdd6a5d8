-- Every relay: who runs it, how far it is, and which segments it keeps. Rows: one each. Locks: none.
select r.name, r.lanes, r.definition ->> 'table' as reads, extract(epoch from pg_catalog.now() - r.registered_at)::float8 as age,
       (select pg_catalog.count(*) from pgbaton.lane l where l.relay = r.name) as has_lanes,
       (select pg_catalog.count(*) from pgbaton.lane l where l.relay = r.name and l.owner is not null) as owned,
       (select pg_catalog.count(*) from pgbaton.replica p where r.name = any(p.relays)) as replicas,
       (select pg_catalog.count(*) from (select from pgbaton.parked a where a.relay = r.name limit 10000) a) as parked,
       case when r.adopted is null then
         (select pg_catalog.min(greatest(n.floor, n.last)) from pgbaton.newest n where n.relay = r.name) end as passed
from pgbaton.relay r order by r.name
