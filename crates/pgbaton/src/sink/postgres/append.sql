-- Moves the fence row from one position to the next, and inserts the batch only if it did.
-- Parameters: $1 the relay, $2 the lane, $3 our epoch, $4 the position before (null: none), $5 the position after,
-- $6 to $12 the messages, a column each.
-- Rows: one with whether the fence moved and the epoch it holds if it did not, and one for each message that is new.
-- Names have their schema where others' functions might fit better, since the role's search path holds for the table's triggers.
-- Locks: the fence row. Invariant: messages and position are written together, under our epoch, or not at all.
with moved as (
  update {schema}.{table}_fence set position = $5::bytea
  where relay = $1::text and lane = $2::integer and epoch = $3::bigint and position is not distinct from $4::bytea
  returning true as moved
), written as (
  insert into {schema}.{table} (relay, message_id, topic, key, headers, payload, payload_json, created_at)
    select $1::text, m.id, m.topic, m.key, m.headers::json, m.payload, m.json::json,
           'epoch'::timestamptz + (m.created operator(pg_catalog.*) interval '1 microsecond')
    from moved, rows from (
      pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::text[]), pg_catalog.unnest($9::text[]),
      pg_catalog.unnest($10::bytea[]), pg_catalog.unnest($11::text[]), pg_catalog.unnest($12::bigint[])
    ) with ordinality as m(id, topic, key, headers, payload, json, created, n)
    order by m.n
  on conflict (relay, message_id) do nothing
  returning message_id
)
select exists (select from moved) as moved, f.epoch, null as message_id
from (values (1)) one left join {schema}.{table}_fence f on f.relay = $1::text and f.lane = $2::integer
union all
select true, null, message_id from written
