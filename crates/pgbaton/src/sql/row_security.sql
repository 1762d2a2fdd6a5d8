-- Tables of pgbaton's that have row-level security, and whether it hides rows from this role.
-- Rows: one each. Locks: none. Asked of the catalogue, which answers also where the schema may not be used.
select c.relname::text as name, pg_catalog.row_security_active(c.oid) as active
from pg_catalog.pg_class c join pg_catalog.pg_namespace s on s.oid = c.relnamespace and s.nspname = 'pgbaton'
where c.relkind in ('r', 'p') and c.relrowsecurity order by c.relname
