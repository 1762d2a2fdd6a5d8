-- What the fence row holds. A statement after `fence`. Parameters: $1 the relay, $2 the lane. Rows: one.
select epoch, position from {schema}.{table}_fence where relay = $1::text and lane = $2::integer
