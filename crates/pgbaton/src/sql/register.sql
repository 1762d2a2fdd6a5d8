-- Registers a relay with all its lanes and their first positions, unless it is registered.
-- Parameters: $1 the relay, $2 the number of lanes.
-- Rows: the number of lanes it has, by the table. Locks: the relay's row, against a second one at the same time.
-- Invariant: every lane of a registered relay has a position, so that "all lanes have passed this" is never empty.
with relay as (
  insert into pgbaton.relay (name) values ($1::text) on conflict do nothing returning name
), lanes as (
  insert into pgbaton.lane (relay, lane, lanes)
    select name, n, $2::integer from relay, pg_catalog.generate_series(0, $2::integer - 1) n
  returning relay, lane, epoch
)
insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, last)
  select p.leaf, l.relay, l.lane, l.epoch, 0, 0, '1:1:', 0, 0 from lanes l, pgbaton.position_leaf p
