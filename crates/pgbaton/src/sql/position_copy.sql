-- Copies the newest position of each lane from a leaf that is about to be emptied. Runs in a statement after the leaf
-- was locked, so that it sees every acknowledgement that was written to it.
-- Parameters: $1 the leaf to be emptied, $2 the other one. Rows: none.
-- Invariant: each lane's newest position, by epoch and then seq, is in the other leaf afterwards.
insert into pgbaton.position
  (leaf, relay, lane, epoch, seq, batch, consumed, floor, target, ceiling, last, l, x, written_at,
   set_back)
select $2::smallint, n.relay, n.lane, n.epoch, n.seq, n.batch, n.consumed, n.floor, n.target, n.ceiling, n.last, n.l, n.x,
       n.written_at, n.set_back
from pgbaton.lane l cross join lateral (
  select * from pgbaton.position p
  where p.leaf = $1::smallint and p.relay = l.relay and p.lane = l.lane order by p.epoch desc, p.seq desc limit 1
) n
on conflict do nothing
