-- Has new positions written to the other leaf. An acknowledgement under way may still write to this one.
-- Parameters: $1 the leaf that was written to. Rows: one if nobody else turned first. Locks: the only row.
update pgbaton.position_leaf set leaf = 1 - leaf where leaf = $1::smallint returning leaf
