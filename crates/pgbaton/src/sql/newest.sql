-- A lane's newest position, by epoch and then seq, and the cluster's next transaction id that it is checked against.
-- Parameters: $1 the relay, $2 the lane.
-- Rows: one; none if the lane was never registered. Locks: none. Relies on: the index on (leaf, relay, lane, epoch, seq).
select p.batch, p.consumed::text as consumed, p.floor, p.target::text as target, p.ceiling, p.last, p.l, p.x::text as x,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text as next
from (
  select n.* from (values (0), (1)) as f(leaf) cross join lateral (
    select * from pgbaton.position
    where leaf = f.leaf and relay = $1::text and lane = $2::integer order by epoch desc, seq desc limit 1
  ) n
  order by n.epoch desc, n.seq desc limit 1
) p
