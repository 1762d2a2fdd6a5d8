-- Replication slots of the server: what they keep.
-- Rows: one each. Locks: none.
select s.slot_name::text as name, s.slot_type as kind, s.active, s.temporary, s.wal_status = 'lost' as lost,
       greatest(pg_catalog.age(s.xmin), pg_catalog.age(s.catalog_xmin))::bigint as behind,
       pg_catalog.pg_wal_lsn_diff(case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
                                       else pg_catalog.pg_current_wal_lsn() end, s.restart_lsn)::bigint as bytes
from pg_catalog.pg_replication_slots s order by s.slot_name
