-- Messages of a relay that are next in their keys, and paused by now, are not tried: some at a time. A new statement after `lanes_lock`.
-- Parameters: $1 the relay, $2 the key (null: any), $3 the topics as LIKE has them (null: any), $4 how many at most. Rows: one for each.
-- Locks: the rows it changes. Relies on: the index on (relay, next_at).
update pgbaton.parked p set next_at = 'infinity' from (
  select n.id from pgbaton.parked n
  where n.relay = $1::text and n.next_at < 'infinity' and (n.key = $2::text or n.topic like $3::text) limit $4::bigint
) n
where p.relay = $1::text and p.id = n.id
  and pgbaton.next_try(p.relay, p.key, p.topic, 'epoch') = 'infinity' returning p.id
