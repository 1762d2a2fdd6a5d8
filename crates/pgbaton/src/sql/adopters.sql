-- Relays that are registered under this name or for this table, and what their replicas agreed about.
-- Parameters: $1 the relay, $2 the table, quoted. Rows: one each. Locks: none.
select r.name, r.definition::text as definition, coalesce(r.adopted = $2::text::regclass::oid, false) as same_table
from pgbaton.relay r where r.name = $1::text or r.adopted = $2::text::regclass::oid order by r.name
