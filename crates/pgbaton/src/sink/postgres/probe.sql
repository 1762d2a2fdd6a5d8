-- Whether both tables are there and readable, and which rights this role lacks for what `fence` and `append` do.
-- Rows: one. Locks: none. A right on the whole table is one on each column as well.
select pg_catalog.array_to_string(array[
    case when not pg_catalog.has_any_column_privilege('{schema}.{table}', 'insert')
         then 'insert on {schema}.{table}' end,
    case when not pg_catalog.has_table_privilege('{schema}.{table}_fence', 'insert')
         then 'insert on {schema}.{table}_fence' end,
    case when not pg_catalog.has_any_column_privilege('{schema}.{table}_fence', 'update')
         then 'update on {schema}.{table}_fence' end
  ], ', ') as missing,
  exists (select message_id from {schema}.{table} where false) as inbox,
  exists (select relay from {schema}.{table}_fence where false) as fence
