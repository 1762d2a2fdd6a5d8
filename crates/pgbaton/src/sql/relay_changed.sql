-- What is set aside of a relay is about to be changed by hand: its replicas ask anew. A new statement after `lanes_lock`.
-- Parameters: $1 the relay. Rows: none. Locks: its row.
update pgbaton.relay r set changes = r.changes + 1 where r.name = $1::text
