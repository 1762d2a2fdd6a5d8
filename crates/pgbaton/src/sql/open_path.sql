-- Schemas on this role's search path in which roles other than their owner may create, so that a name of the operator's may be
-- taken for something of theirs; and one of the role's own name that is not there, if others may make it.
-- Rows: one for each. Locks: none.
select n.nspname::text as schema
from pg_catalog.pg_namespace n
where n.nspname = any (pg_catalog.current_schemas(false)) and exists (
  select from pg_catalog.aclexplode(n.nspacl) a left join pg_catalog.pg_roles g on g.oid = a.grantee
  where a.privilege_type = 'CREATE' and a.grantee not in (n.nspowner, current_user::regrole::oid) and g.rolsuper is not true)
union all
select current_user::text
from pg_catalog.pg_database d
where d.datname = pg_catalog.current_database() and pg_catalog.current_setting('search_path') like '%"$user"%'
  and not exists (select from pg_catalog.pg_namespace n where n.nspname = current_user)
  and exists (
    select from pg_catalog.aclexplode(d.datacl) a left join pg_catalog.pg_roles g on g.oid = a.grantee
    where a.privilege_type = 'CREATE' and a.grantee not in (d.datdba, current_user::regrole::oid) and g.rolsuper is not true)
