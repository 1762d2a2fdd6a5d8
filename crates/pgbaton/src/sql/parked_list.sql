-- A choice of messages that are set aside, in the order in which they were.
-- Parameters: $1 the relay (null: all), $2 the lane (null: all), $3 the key (null: any), $4 the topic as LIKE has it (null: any), $5 message ids
-- (empty: any), $6 the code of the last fault (null: any), $7 how many seconds ago they were inserted at least, $8 whether they are dead
-- and not given up (null: either), $9 only those above this number, $10 how many.
-- Rows: one a message, with times as texts in UTC, and the id of the one it waits behind. Locks: none.
select p.relay, p.id, p.number, p.hash, l.lane, p.topic, p.key, p.size, p.attempts, p.code, p.holds, p.given_up, p.deaths, coalesce(p.next_at = 'infinity', false) as paused,
  pgbaton.utc(nullif(p.deliver_at, 'infinity')) as deliver_at, p.log_id, p.row_id, p.faults::text as faults,
  pgbaton.utc(p.created_at) as created_at, pgbaton.utc(p.parked_at) as parked_at, pgbaton.utc(p.first_at) as first_at,
  pgbaton.utc(p.last_at) as last_at, case when p.next_at > 'epoch' and p.next_at < 'infinity' then pgbaton.utc(p.next_at) end as next_at, pgbaton.utc(p.dead_at) as dead_at,
  case when p.next_at is null and p.dead_at is null then (
    select b.id from pgbaton.parked b where b.relay = p.relay and b.hash = p.hash and b.holds and b.number < p.number
    order by b.relay, b.hash, b.number limit 1) end as behind
from pgbaton.parked p left join pgbaton.lane l on l.relay = p.relay and l.lane = (p.hash & (l.lanes - 1))::integer
where ($1::text is null or p.relay = $1::text) and ($2::integer is null or l.lane = $2::integer)
  and ($3::text is null or p.key = $3::text) and ($4::text is null or p.topic like $4::text)
  and ($5::text[] = '{}' or p.id = any($5::text[])) and ($6::text is null or p.code = $6::text)
  and p.created_at <= pg_catalog.clock_timestamp() - $7::float8 * interval '1 s'
  and ($8::boolean is null or (p.dead_at is not null and not p.given_up) = $8::boolean) and p.number > $9::bigint
order by p.number limit $10::bigint
