-- Splits a lane that its owner has settled and drained: l of n becomes l and l + n of 2n, both free, both with a new epoch
-- and its position, and paused if it was. A new statement after `register_lock` and `claim_lock`.
-- Parameters: $1 the replica, $2 the incarnation, $3 the relay, $4 the lane, $5 its epoch.
-- Rows: the two lanes; none if it is no longer ours, or has lanes enough. Locks: the lane's row.
with half as (
  update pgbaton.lane l set lanes = l.lanes * 2, owner = null, epoch = l.epoch + 1, deaths = 0
  where l.relay = $3::text and l.lane = $4::integer and l.owner = $1::uuid and l.epoch = $5::bigint
    and l.lanes < (select r.lanes from pgbaton.relay r where r.name = l.relay) and pgbaton.incarnation() = $2::text
  returning l.relay, l.lane, l.lanes, l.epoch
), other as (
  insert into pgbaton.lane (relay, lane, lanes, epoch) select relay, lane + lanes / 2, lanes, epoch from half
  returning relay, lane, lanes, epoch
), paused as (
  insert into pgbaton.pause (relay, lane)
    select o.relay, o.lane from other o join half h on true join pgbaton.pause p on p.relay = h.relay and p.lane = h.lane
  on conflict do nothing
), both_halves as (
  select * from half union all select * from other
), positions as (
  insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, target, ceiling, last, l, x)
    select f.leaf, b.relay, b.lane, b.epoch, 0, n.batch, n.consumed, n.floor, n.target, n.ceiling, n.last, n.l, n.x
    from both_halves b, pgbaton.position_leaf f, pgbaton.newest n where n.relay = $3::text and n.lane = $4::integer
)
select relay, lane, lanes, epoch from both_halves
