-- How many lanes a relay has, by the table.
-- Parameters: $1 the relay. Rows: one for each number found; more than one while a split is under way.
select distinct lanes from pgbaton.lane where relay = $1::text
