-- What this role is, whether there is a schema, and what it may do to messages and positions that a relay's role need not.
-- Rows: one. Locks: none. Asked of the catalogue, which answers also where the schema may not be used.
select r.rolname::text as name, r.rolsuper as superuser, r.rolconnlimit as connections,
       coalesce(pg_catalog.pg_has_role(current_user, s.nspowner, 'usage')
                or exists (select from pg_catalog.pg_class c where c.relnamespace = s.oid
                           and pg_catalog.pg_has_role(current_user, c.relowner, 'usage')), false) as owns,
       exists (select from pg_catalog.pg_class m where m.relnamespace = s.oid and m.relname = 'migration') as migrated,
       array(
         select pg_catalog.concat(p.privilege, ' on ', c.relname)
         from pg_catalog.pg_class c, (values ('insert'), ('update'), ('delete'), ('truncate')) as p(privilege)
         where c.relnamespace = s.oid and c.relkind in ('r', 'p') and case
           when c.relname in ('home', 'migration', 'relay') then p.privilege in ('delete', 'truncate') and pg_catalog.has_table_privilege(c.oid, p.privilege)
           when c.relname ~ '^position(_[01])?$' then p.privilege in ('update', 'delete') and pg_catalog.has_table_privilege(c.oid, p.privilege)
           when c.relname ~ '^outbox(_[0-9]+)?$' then case when p.privilege in ('insert', 'update')
             then pg_catalog.has_any_column_privilege(c.oid, p.privilege) else pg_catalog.has_table_privilege(c.oid, p.privilege) end
           else false end
         order by c.relname, p.privilege) as beyond
from pg_catalog.pg_roles r left join pg_catalog.pg_namespace s on s.nspname = 'pgbaton'
where r.rolname = current_user
