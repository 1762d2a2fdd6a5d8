-- One look at all replicas and all lanes. Lanes of other relays count as well: shares are even over all of them, and
-- every replica must come to the same ones.
-- Rows: the incarnation and the settled timeline in each; `kind` r = a replica, l = a lane (`wanted`: how many lanes its
-- relay is to have; `changes`: what commands have changed of it), h = neither: what is paused (null: nothing), as JSON.
-- Locks: none. Small tables: read whole.
select (select pgbaton.incarnation()) as incarnation, (select timeline from pgbaton.home) as settled, f.*
from (
  select 'h' as kind, null::uuid as replica, null::bigint as beat, null::bigint as ttl_ms, null::text[] as relays,
         null::text as relay, null::integer as lane, null::integer as lanes, null::integer as wanted, null::bigint as epoch,
         (select pg_catalog.json_agg(pg_catalog.json_build_object('relay', p.relay, 'lane', p.lane, 'key', p.key, 'topic', p.topic))::text
          from pgbaton.pause p) as pauses, null::bigint as changes
  union all
  select 'r', id, beat, ttl_ms, relays, null, null, null, null, null, null, null from pgbaton.replica
  union all
  select 'l', l.owner, null, null, null, l.relay, l.lane, l.lanes, r.lanes, l.epoch, null, r.changes
  from pgbaton.lane l join pgbaton.relay r on r.name = l.relay
) f
