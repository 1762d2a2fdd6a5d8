-- Each lane with its owner and its newest position.
-- Rows: one a lane. Locks: none. Relies on: the index on (leaf, relay, lane, epoch, seq).
select l.relay, l.lane, l.lanes, l.epoch, r.id::text as replica, r.name as replica_name, n.batch,
       greatest(n.floor, n.last) as passed,
       extract(epoch from pg_catalog.clock_timestamp() - n.written_at)::float8 as age
from pgbaton.lane l
  left join pgbaton.replica r on r.id = l.owner
  left join lateral (
    select m.* from (values (0), (1)) as f(leaf) cross join lateral (
      select * from pgbaton.position p
      where p.leaf = f.leaf and p.relay = l.relay and p.lane = l.lane order by p.epoch desc, p.seq desc limit 1
    ) m
    order by m.epoch desc, m.seq desc limit 1
  ) n on true
order by l.relay, l.lane
