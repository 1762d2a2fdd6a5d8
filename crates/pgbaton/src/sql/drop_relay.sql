-- Drops a relay, its lanes and positions. What only it kept is emptied by and by. Only the schema's owner may.
-- Parameters: $1 the relay. Rows: one; none if it is not registered, or a replica runs it. Locks: its rows.
with relay as (
  select name from pgbaton.relay r where r.name = $1::text
    and not exists (select from pgbaton.replica p where r.name = any(p.relays)) for update
), positions as (
  delete from pgbaton.position p using relay where p.relay = relay.name
), lanes as (
  delete from pgbaton.lane l using relay where l.relay = relay.name
), gone as (
  delete from pgbaton.relay r using relay where r.name = relay.name returning r.name
)
select name from gone
