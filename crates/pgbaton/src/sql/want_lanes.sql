-- Has a relay's lanes doubled: their owners split them, one after the other.
-- Parameters: $1 the relay, $2 how many it has now. Rows: one if it had so many. Locks: the relay's row.
update pgbaton.relay set lanes = lanes * 2 where name = $1::text and lanes = $2::integer and lanes < 4096
  and not exists (select from pgbaton.lane l where l.relay = name and l.lanes < relay.lanes)
returning lanes
