-- How many lanes a relay is to have, by the table. Parameters: $1 the relay. Rows: one; none if it is not registered.
select lanes from pgbaton.relay where name = $1::text
