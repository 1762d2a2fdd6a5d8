-- A message that may have killed its lane's owners is about to be tried alone, or was, and its owner lives. A new statement after
-- `acknowledge_lock`.
-- Parameters: $1 the relay, $2 the replica, $3 the incarnation, $4 the lane, $5 its epoch, $6 the message id, $7 whether it is about to be.
-- Rows: how many owners have died trying it; none if the lane is no longer ours, or it is no longer set aside. Locks: its row.
-- A replica that is still there, or has quit, did not die of it.
update pgbaton.parked p
set deaths = p.deaths + f.died::integer, trying = case when $7::boolean then $2::uuid end,
    code = case when f.died then 'relay.died' else p.code end,
    faults = case when not f.died then p.faults else
      case when pg_catalog.jsonb_array_length(p.faults) >= 10 then p.faults - 0 else p.faults end
      || pg_catalog.jsonb_build_object('at', pg_catalog.clock_timestamp(), 'code', 'relay.died',
           'text', 'the replica that tried it alone has died', 'replica', p.trying) end
from pgbaton.lane l cross join lateral (
  select b.id, b.trying is not null and b.trying <> $2::uuid
    and not exists (select from pgbaton.replica r where r.id = b.trying) as died
  from pgbaton.parked b where b.relay = $1::text and b.id = $6::text
) f
where l.relay = $1::text and l.lane = $4::integer and l.owner = $2::uuid and l.epoch = $5::bigint
  and pgbaton.incarnation() = $3::text and p.relay = $1::text and p.id = f.id
returning p.deaths
