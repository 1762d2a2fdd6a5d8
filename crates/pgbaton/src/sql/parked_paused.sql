-- Of the messages of a relay that are next in their keys, those that are paused are not tried, and those that are not any more are.
-- A new statement after `pause` or `resume`, which hold the lanes' locks.
-- Parameters: $1 the relay. Rows: none. Locks: the rows it changes. Relies on: the index on (relay, next_at).
with next as (
  select p.id, pgbaton.next_try(p.relay, p.key, p.topic,
    case when p.next_at = 'infinity' then greatest(pg_catalog.clock_timestamp(), p.deliver_at) else p.next_at end) as at
  from pgbaton.parked p where p.relay = $1::text and p.next_at is not null
)
update pgbaton.parked p set next_at = next.at from next
where p.relay = $1::text and p.id = next.id and p.next_at <> next.at and (p.next_at = 'infinity' or next.at = 'infinity')
