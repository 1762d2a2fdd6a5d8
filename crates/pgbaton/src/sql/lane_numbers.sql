-- The numbers of a relay's lanes. Parameters: $1 the relay. Rows: one each. Locks: none.
select lane from pgbaton.lane where relay = $1::text order by lane
