-- Messages of the outbox that were set aside, whole.
-- Parameters: $1 the relay, $2 their ids. Rows: which one, and as `message` has them, in this order. Locks: none.
select w.n, p.hash, p.size, p.id::uuid as message_id, p.created_at, p.topic, p.key, p.headers, p.payload, p.payload_json
from pg_catalog.unnest($2::text[]) with ordinality as w(id, n)
  join pgbaton.parked p on p.relay = $1::text and p.id = w.id
order by w.n
