-- All pauses, with how many messages are set aside because of each: up to 10,000.
-- Rows: one each, with times as texts in UTC. Locks: none.
select p.relay, p.lane, p.key, p.topic, pgbaton.utc(p.paused_at) as paused_at, p.who,
  case when p.lane is null and num_nonnulls(p.key, p.topic) = 1 then (
    select pg_catalog.count(*) from (
      select from pgbaton.parked a where a.relay = p.relay and a.holds and a.dead_at is null
        and (a.key = p.key or a.topic like p.topic_like) limit 10000) a) end as parked
from pgbaton.pause p order by p.relay, p.lane nulls first, p.key nulls first, p.topic
