-- The content of a message of the outbox that is set aside. Parameters: $1 the relay, $2 its id.
-- Rows: one, if it is set aside; of an adopted table's the content is in the table. Locks: none.
select p.headers::text as headers, p.payload, p.payload_json::text as payload_json
from pgbaton.parked p where p.relay = $1::text and p.id = $2::text
