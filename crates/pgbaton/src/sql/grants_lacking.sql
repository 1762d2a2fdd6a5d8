-- Which of the rights that a relay's role needs this role lacks. Asked of the catalogue, which answers also where the schema may not be
-- used.
-- Parameters: $1 kinds (`schema`, `function`, `table`, `all tables`, `all sequences`), $2 names, $3 privileges, $4 columns or null: arrays of
-- one length. Rows: one for each right that is lacked. Locks: none.
with wanted as (
  select w.kind, w.name, w.privilege, w.attribute, s.oid as namespace
  from pg_catalog.unnest($1::text[], $2::text[], $3::text[], $4::text[]) as w(kind, name, privilege, attribute),
       pg_catalog.pg_namespace s where s.nspname = 'pgbaton'
)
select w.privilege || ' on schema pgbaton' as lacking
from wanted w where w.kind = 'schema' and not pg_catalog.has_schema_privilege(w.namespace, w.privilege)
union
select pg_catalog.concat(w.privilege, ' on function pgbaton.', p.proname)
from wanted w join pg_catalog.pg_proc p on p.pronamespace = w.namespace and p.proname = w.name
where w.kind = 'function' and not pg_catalog.has_function_privilege(p.oid, w.privilege)
union
select pg_catalog.concat(w.privilege, ' (' || w.attribute || ')', ' on pgbaton.', c.relname)
from wanted w join pg_catalog.pg_class c on c.relnamespace = w.namespace and case w.kind
    when 'table' then c.relname = w.name when 'all tables' then c.relkind in ('r', 'p', 'v') when 'all sequences' then c.relkind = 'S' else false end
where not case
    when c.relkind = 'S' then pg_catalog.has_sequence_privilege(c.oid, w.privilege)
    when w.attribute is not null then pg_catalog.has_column_privilege(c.oid, w.attribute, w.privilege)
    else pg_catalog.has_table_privilege(c.oid, w.privilege) end
order by 1
