-- A lane's newest position, by epoch and then seq, with what it is checked against: the one before it, the cluster's next
-- transaction id, whether something was emptied that it has not passed, and what a sink's position may say of its origin.
-- Unlike `emptied`, this does not ask what S or T saw running: a long transaction that never wrote into the segment would have
-- every opening of the lane refused. Whoever sets a position back is refused rather than lose something.
-- Parameters: $1 the relay, $2 the lane.
-- Rows: two at most, the newest first; none if the lane was never registered. Locks: none.
-- Relies on: the index on (leaf, relay, lane, epoch, seq).
select p.batch, p.consumed::text as consumed, p.floor, p.target::text as target, p.ceiling, p.last, p.l, p.x::text as x,
       p.set_back, r.registration::text as registration, h.former, h.forsaken,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text as next,
       exists (select from pgbaton.segment s where s.emptied_by > r.registered_by
               and not (s.emptied_xid < pg_catalog.pg_snapshot_xmax(p.consumed)
                        or (p.target is not null and s.emptied_id <= p.last
                            and s.emptied_xid < pg_catalog.pg_snapshot_xmax(p.target)))) as lacks
from (
  select n.* from (values (0), (1)) as f(leaf) cross join lateral (
    select * from pgbaton.position
    where leaf = f.leaf and relay = $1::text and lane = $2::integer order by epoch desc, seq desc limit 2
  ) n
  order by n.epoch desc, n.seq desc limit 2
) p join pgbaton.relay r on r.name = p.relay, pgbaton.home h
order by p.epoch desc, p.seq desc
