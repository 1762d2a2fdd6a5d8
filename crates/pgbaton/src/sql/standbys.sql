-- Standbys that hold back what vacuum may remove, by `hot_standby_feedback` without a slot.
-- Rows: one each. Locks: none.
select r.pid, r.application_name as application, pg_catalog.age(r.backend_xmin)::bigint as behind
from pg_catalog.pg_stat_replication r where r.backend_xmin is not null order by behind desc, r.pid
