-- Takes the lane's fence: from now on an older epoch is refused.
-- Parameters: $1 the relay, $2 the lane, $3 our epoch, $4 whether it may already stand at our epoch.
-- Rows: one if the fence is ours. Locks: the fence row.
insert into {schema}.{table}_fence as f (relay, lane, epoch) values ($1::text, $2::integer, $3::bigint)
on conflict (relay, lane) do update set epoch = excluded.epoch
  where f.epoch < excluded.epoch or (f.epoch = excluded.epoch and $4::boolean)
returning epoch
