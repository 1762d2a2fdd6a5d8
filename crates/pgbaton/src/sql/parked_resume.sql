-- Messages of a relay that are next in their keys, and not paused any more, are due: some at a time, each in time. A new statement after
-- `lanes_lock`.
-- Parameters: $1 the relay, $2 how many at most. Rows: one for each. Locks: the rows it changes.
-- Relies on: the index on (relay, next_at).
update pgbaton.parked p set next_at = n.at from (
  select r.id, r.at from (
    select i.id, pgbaton.next_try(i.relay, i.key, i.topic, greatest(pgbaton.after(0), i.deliver_at)) as at
    from pgbaton.parked i where i.relay = $1::text and i.next_at = 'infinity'
  ) r where r.at < 'infinity' limit $2::bigint
) n
where p.relay = $1::text and p.id = n.id returning p.id
