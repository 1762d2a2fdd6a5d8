-- How many lanes a relay is to have, by the table, and what its replicas agreed about when it was registered.
-- Parameters: $1 the relay. Rows: one; none if it is not registered.
select lanes, definition::text as definition from pgbaton.relay where name = $1::text
