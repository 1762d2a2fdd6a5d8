-- Whether both tables are there with their columns, and whether this role may do with them what `fence` and `append` do:
-- rights are compared although no row is written. Rows: none. Locks: none that anybody waits for.
with inbox as (
  insert into {schema}.{table} (relay, message_id, topic, key, headers, payload, payload_json, created_at)
    select '', '', '', null::text, null::json, null::bytea, null::json, pg_catalog.now() where false
  on conflict (relay, message_id) do nothing
  returning message_id
), fence as (
  insert into {schema}.{table}_fence (relay, lane, epoch, position) select '', 0, 0, null::bytea where false
  returning relay
), moved as (
  update {schema}.{table}_fence set epoch = epoch, position = position where false returning relay
)
select message_id from inbox union all select relay from fence union all select relay from moved
