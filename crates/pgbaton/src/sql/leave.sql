-- A replica takes no more lanes: the others' shares grow at once.
-- Parameters: $1 the replica. Rows: none. Locks: its row.
update pgbaton.replica set relays = '{}' where id = $1::uuid
