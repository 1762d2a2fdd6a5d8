-- A replica is gone. Lanes it still holds become free.
-- Parameters: $1 the replica. Rows: none. Locks: its row, its lanes' rows.
delete from pgbaton.replica where id = $1::uuid
