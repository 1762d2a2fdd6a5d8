-- Deletes dead messages of the outbox that their keys go past, once they have been dead for long. What holds its key stays for a person.
-- Parameters: $1 the relay, $2 for how many seconds, $3 how many at most. Rows: one for each. Locks: their rows, those that are locked
-- by others left out. Relies on: the index on (relay, dead_at).
delete from pgbaton.parked d using (
  select p.id from pgbaton.parked p
  where p.relay = $1::text and p.dead_at is not null and p.dead_at < pg_catalog.clock_timestamp() - $2::float8 * interval '1 s'
    and not p.holds and p.log_id is not null
  order by p.relay, p.dead_at limit $3::bigint for update skip locked
) old
where d.relay = $1::text and d.id = old.id returning d.id
