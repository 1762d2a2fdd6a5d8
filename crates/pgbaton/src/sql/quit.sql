-- A replica is gone, and has not died. Lanes it still holds become free, and what it was trying alone has not killed it.
-- Parameters: $1 the replica. Rows: none. Locks: its row, its lanes' rows, those of what it was trying.
-- Relies on: the index on trying.
with tried as (
  update pgbaton.parked set trying = null where trying = $1::uuid
)
delete from pgbaton.replica where id = $1::uuid
