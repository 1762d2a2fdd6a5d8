-- Which of the rights that a relay's role needs this role lacks. Asked of the catalogue, which answers also where the schema may not be
-- used. (Each condition is one `case`: what asks for a privilege that its kind of object does not have is an error.)
-- Parameters: $1 kinds (`schema`, `function`, `table`, `all tables`, `all sequences`), $2 names, $3 privileges, $4 columns or null: arrays of
-- one length. Rows: one for each right that is lacked. Locks: none.
with wanted as (
  select w.kind, w.name, w.privilege, w.attribute, s.oid as namespace
  from rows from (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[]))
         as w(kind, name, privilege, attribute),
       pg_catalog.pg_namespace s where s.nspname = 'pgbaton'
)
select w.privilege || ' on schema pgbaton' as lacking
from wanted w where case when w.kind = 'schema' then not pg_catalog.has_schema_privilege(w.namespace, w.privilege) else false end
union
select pg_catalog.concat(w.privilege, ' on function pgbaton.', p.proname)
from wanted w, pg_catalog.pg_proc p
where case when w.kind = 'function' and p.pronamespace = w.namespace and p.proname = w.name
  then not pg_catalog.has_function_privilege(p.oid, w.privilege) else false end
union
select pg_catalog.concat(w.privilege, ' (' || w.attribute || ')', ' on pgbaton.', c.relname)
from wanted w, pg_catalog.pg_class c
where case
    when c.relnamespace <> w.namespace then false
    when w.kind = 'all sequences' and c.relkind = 'S' then not pg_catalog.has_sequence_privilege(c.oid, w.privilege)
    when w.kind = 'all tables' and c.relkind in ('r', 'p', 'v') then not pg_catalog.has_table_privilege(c.oid, w.privilege)
    when w.kind <> 'table' or c.relname <> w.name then false
    when w.attribute is not null then not pg_catalog.has_column_privilege(c.oid, w.attribute, w.privilege)
    else not pg_catalog.has_table_privilege(c.oid, w.privilege) end
order by 1
