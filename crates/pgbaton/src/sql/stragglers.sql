-- The next $3 rows by id of transactions that ran when S was taken and are visible in T, as far as they are of these lanes.
-- Parameters: $1 after, $2 up to, $3 how many rows at most, also of each transaction, $4 the transactions, $5 number of
-- lanes, $6 the lanes (empty: all), $7 the size above which only the size is given, $8 patterns of topics (empty: all).
-- Rows: the messages, ascending by id; `later`: in how many seconds it is to be delivered (null: at once). Locks: none. Relies on: the index on (xid, id): a bulk load that commits late is
-- millions of rows, so each step is bounded and the next one goes on from the last id alone. The pairs are compared
-- because only that index has their order: with `xid = …` the planner may walk the one on id past everybody's rows.
select w.id, w.hash, w.size, w.message_id, w.created_at,
       case when w.size <= $7::integer then w.topic end as topic,
       case when w.size <= $7::integer then w.key end as key,
       case when w.size <= $7::integer then w.headers end as headers,
       case when w.size <= $7::integer then w.payload end as payload,
       case when w.size <= $7::integer then w.payload_json end as payload_json,
       case when w.deliver_at > pg_catalog.statement_timestamp() then
         least(extract(epoch from w.deliver_at) - extract(epoch from pg_catalog.statement_timestamp()), 1e9)::float8 end as later
from (
  select m.* from pg_catalog.unnest($4::text[]::xid8[]) as x(xid) cross join lateral (
    select o.* from pgbaton.outbox o
    where (o.xid, o.id) > (x.xid, $1::bigint) and (o.xid, o.id) <= (x.xid, $2::bigint)
    order by o.xid, o.id limit $3::bigint
  ) m
  order by m.id limit $3::bigint
) w
where ($6::integer[] = '{}' or (w.hash & ($5::integer - 1))::integer = any($6::integer[]))
  and ($8::text[] = '{}' or w.topic like any($8::text[]))
order by w.id
