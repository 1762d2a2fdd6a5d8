-- A window: of the next $3 rows by id, those that T sees and S does not, of these lanes.
-- Parameters: $1 after, $2 up to, $3 how many rows are examined, $4 the segments that can hold such rows (null: all), $5 S,
-- $6 T, $7 number of lanes, $8 the lanes (empty: all), $9 the size above which only the size is given, $10 patterns of topics
-- (empty: all).
-- Rows: the messages, ascending by id; `later`: in how many seconds it is to be delivered (null: at once). Locks: none. Relies on: the index on id, never another path: a filter inside the
-- limit would let the planner choose one that reads the whole table.
select w.id, w.hash, w.size, w.message_id, w.created_at,
       case when w.size <= $9::integer then w.topic end as topic,
       case when w.size <= $9::integer then w.key end as key,
       case when w.size <= $9::integer then w.headers end as headers,
       case when w.size <= $9::integer then w.payload end as payload,
       case when w.size <= $9::integer then w.payload_json end as payload_json,
       case when w.deliver_at > pg_catalog.statement_timestamp() then
         least(extract(epoch from w.deliver_at) - extract(epoch from pg_catalog.statement_timestamp()), 1e9)::float8 end as later
from (
  select * from pgbaton.outbox
  where id > $1::bigint and id <= $2::bigint and ($4::smallint[] is null or segment = any($4::smallint[]))
  order by id limit $3::bigint
) w
where (
    -- Began after S was taken, and ended before T was: true of most rows, and cheaper to tell than what follows.
    (w.xid >= pg_catalog.pg_snapshot_xmax($5::text::pg_snapshot)
     and w.xid < pg_catalog.pg_snapshot_xmin($6::text::pg_snapshot))
    or (not pg_catalog.pg_visible_in_snapshot(w.xid, $5::text::pg_snapshot)
        and pg_catalog.pg_visible_in_snapshot(w.xid, $6::text::pg_snapshot))
  )
  and ($8::integer[] = '{}' or (w.hash & ($7::integer - 1))::integer = any($8::integer[]))
  and ($10::text[] = '{}' or w.topic like any($10::text[]))
order by w.id
