-- The number of a lane's last batch, and what a sink's position may say of its origin: of an adopted table.
-- Parameters: $1 the relay, $2 the lane. Rows: one; none if the lane was never registered. Locks: none.
-- Relies on: the index on (leaf, relay, lane, epoch, seq).
select n.batch, r.registration::text as registration, h.former, h.forsaken,
       r.adopted as table, pgbaton.incarnation() as incarnation
from pgbaton.newest n join pgbaton.relay r on r.name = n.relay, pgbaton.home h
where n.relay = $1::text and n.lane = $2::integer
