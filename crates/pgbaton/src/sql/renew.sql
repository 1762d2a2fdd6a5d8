-- Renews the lease of all lanes of a replica. It runs from the moment this was sent.
-- Parameters: $1 the replica.
-- Rows: one with the incarnation and the new beat; the beat is null if the replica is gone: then everything is lost.
-- Locks: the replica's row. Relies on: a heap-only update, since no index holds the beat.
with renewed as (update pgbaton.replica set beat = beat + 1 where id = $1::uuid returning beat)
select pgbaton.incarnation() as incarnation, (select beat from renewed) as beat
