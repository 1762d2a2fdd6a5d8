-- Which of these indexes hold every row of their table. Parameters: $1 schemas, $2 names. Rows: one each. Locks: none.
select n.name
from unnest($1::text[], $2::text[]) as n(schema, name)
  join pg_catalog.pg_namespace s on s.nspname = n.schema
  join pg_catalog.pg_class c on c.relnamespace = s.oid and c.relname = n.name
  join pg_catalog.pg_index x on x.indexrelid = c.oid
where x.indpred is null
