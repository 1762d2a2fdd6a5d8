-- Removes a replica that has shown the same beat for a whole ttl. Its lanes become free, each with one death more; none at all if it
-- died while it tried a message alone: then that one is the reason.
-- Parameters: $1 the replica, $2 the beat it must still show.
-- Rows: its name if it was removed. Locks: the replica's row, skipped if somebody holds it: a hung claim must not block this;
-- its lanes' rows. Relies on: the index on trying.
-- Invariant: where the beat has moved on, the owner is alive and nothing is removed.
with gone as materialized (
  select r.id from pgbaton.replica r where r.id = $1::uuid and r.beat = $2::bigint for update skip locked
), freed as (
  update pgbaton.lane l set owner = null, deaths = case
    when exists (select from pgbaton.parked p where p.trying = gone.id) then 0 else least(l.deaths + 1, 1000) end
  from gone where l.owner = gone.id
)
delete from pgbaton.replica where id in (select gone.id from gone) returning name
