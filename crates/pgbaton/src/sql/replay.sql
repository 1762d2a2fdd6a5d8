-- Messages of the outbox that a relay has dealt with are set aside once more, to be delivered again: of the next $3 rows by number, up to $12. A
-- new statement after `lanes_lock`, so that no position moves meanwhile. `parked_next` makes the first one of each key due.
-- Parameters: $1 the relay, $2 after which number, $3 how many rows are examined, $4 message ids (empty: any), $5 the key (null: any), $6 the
-- topic as LIKE has it (null: any), $7 and $8 inserted from when and before when (null: any), $9 the replay's number, $10 whether they
-- keep their ids, $11 whether it is done, and not only counted, $12 the last number there was when it began.
-- Rows: one a message, with the key's hash, and the last number that was examined; one with no hash if there was no message of
-- them, and none if there was no row. Locks: none beyond those of an insert. Relies on: the index on id.
-- What is not dealt with yet is delivered anyway, and so is what is set aside.
with examined as materialized (
  select o.* from pgbaton.outbox o where o.id > $2::bigint and o.id <= $12::bigint order by o.id limit $3::bigint
), chosen as materialized (
  select e.*, case when $10::boolean then e.message_id
                   else pg_catalog.md5('pgbaton replay ' || $9::bigint || ' ' || e.message_id)::uuid end as new_id
  from examined e
    join pgbaton.lane l on l.relay = $1::text and l.lane = (e.hash & (l.lanes - 1))::integer
    join pgbaton.newest n on n.relay = l.relay and n.lane = l.lane
  where ($4::text[] = '{}' or e.message_id::text = any($4::text[])) and ($5::text is null or e.key = $5::text)
    and ($6::text is null or e.topic like $6::text)
    and ($7::timestamptz is null or e.created_at >= $7::timestamptz) and ($8::timestamptz is null or e.created_at < $8::timestamptz)
    and (pg_catalog.pg_visible_in_snapshot(e.xid, n.consumed)
         or (n.target is not null and e.id <= n.last and pg_catalog.pg_visible_in_snapshot(e.xid, n.target)))
    and not exists (select from pgbaton.parked p where p.relay = $1::text and p.id = e.message_id::text)
), written as (
  insert into pgbaton.parked (relay, id, hash, xid, log_id, topic, key, headers, payload, payload_json, size, created_at)
    select $1::text, c.new_id::text, c.hash, c.xid, c.id, c.topic, c.key,
           pgbaton.with_headers(c.headers, pg_catalog.jsonb_build_object(
             'pgbaton-replay', $9::bigint::text, 'pgbaton-replay-of', c.message_id::text)),
           c.payload, c.payload_json, c.size, c.created_at
    from chosen c where $11::boolean order by c.id
    on conflict (relay, id) do nothing
)
select e.last, c.hash from (select pg_catalog.max(id) as last from examined having pg_catalog.count(*) > 0) e left join chosen c on true
