-- Transactions of this database that were prepared and are neither committed nor rolled back.
-- Rows: one each, the oldest first. Locks: none.
select p.gid, p.owner::text as role, extract(epoch from pg_catalog.clock_timestamp() - p.prepared)::float8 as age,
       pg_catalog.age(p.transaction)::bigint as behind
from pg_catalog.pg_prepared_xacts p where p.database = pg_catalog.current_database() order by p.prepared, p.gid
