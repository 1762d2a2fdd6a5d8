-- Whether both tables are there and readable. Rows: none.
select message_id from {schema}.{table} where false
union all
select relay from {schema}.{table}_fence where false
