-- The sink holds an epoch as high as ours, or higher: claims were lost in a fail-over. Lifts the lane above it, so that
-- the rightful owner is not refused for ever. Runs under the lane's exclusive lock.
-- Parameters: $1 the replica, $2 the incarnation, $3 the relay, $4 the lane, $5 our epoch, $6 the epoch the sink holds.
-- Rows: the new epoch; none if the lane is no longer ours.
update pgbaton.lane set epoch = greatest(epoch, $6::bigint) + 1
where relay = $3::text and lane = $4::integer and owner = $1::uuid and epoch = $5::bigint
  and pgbaton.incarnation() = $2::text
returning epoch
