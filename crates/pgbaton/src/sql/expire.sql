-- Removes a replica that has shown the same beat for a whole ttl. The foreign key frees its lanes.
-- Parameters: $1 the replica, $2 the beat it must still show.
-- Rows: its name if it was removed. Locks: the replica's row, skipped if somebody holds it: a hung claim must not block this.
-- Invariant: where the beat has moved on, the owner is alive and nothing is removed.
delete from pgbaton.replica where id in (
  select id from pgbaton.replica where id = $1::uuid and beat = $2::bigint for update skip locked
) returning name
