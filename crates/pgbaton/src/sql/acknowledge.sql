-- Writes positions of lanes that are still ours. A new statement after `acknowledge_lock`.
-- Parameters: $1 the relay, $2 the replica, $3 the incarnation the positions belong to, $4 lanes, $5 epochs, $6 seqs,
-- $7 batches, $8 S, $9 floors, $10 T, $11 ceilings, $12 lasts, $13 the last number read before this transaction, $14 whether
-- they are set back on purpose.
-- Rows: the incarnation, this transaction's id, and a lane that was written; the lane is null if none was.
-- Locks: none beyond the shared ones. Writes one row a lane, whatever the number of messages.
-- Invariant: nothing is written for a lane of another owner or epoch, nor in another incarnation; a repeated statement
-- changes nothing.
with here as materialized (
  select pgbaton.incarnation() as incarnation, pg_catalog.pg_current_xact_id() as x
), mine as materialized (
  select d.*
  from unnest($4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], $9::bigint[], $10::text[],
              $11::bigint[], $12::bigint[])
         as d(lane, epoch, seq, batch, consumed, floor, target, ceiling, last)
    join here on here.incarnation = $3::text
    join pgbaton.lane l on l.relay = $1::text and l.lane = d.lane and l.owner = $2::uuid and l.epoch = d.epoch
), written as (
  insert into pgbaton.position
    (leaf, relay, lane, epoch, seq, batch, consumed, floor, target, ceiling, last, l, x, set_back)
  select p.leaf, $1::text, m.lane, m.epoch, m.seq, m.batch, m.consumed::pg_snapshot, m.floor, m.target::pg_snapshot,
         m.ceiling, m.last, $13::bigint, here.x, $14::boolean
  from mine m, here, pgbaton.position_leaf p
  on conflict do nothing
)
select here.incarnation, here.x::text as x, m.lane from here left join mine m on true
