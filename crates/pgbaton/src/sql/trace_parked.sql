-- A message of the outbox as those have it that have set it aside, whether its segment was emptied or not; without what it says.
-- Parameters: $1 its number (null: by the message id), $2 its message id (null: by the number).
-- Rows: one for each relay that has. Locks: none. Relies on: the primary key, for a message id. No index knows numbers.
select p.relay, p.id as message_id, p.log_id as id, p.hash, p.xid::text as xid, p.topic, p.key, p.size, pgbaton.utc(p.created_at) as created_at
from pgbaton.relay r cross join lateral (
  select * from pgbaton.parked a
  where a.relay = r.name and ($2::text is null or a.id = $2::text) and ($1::bigint is null or a.log_id = $1::bigint) and a.log_id is not null
) p
order by p.relay
