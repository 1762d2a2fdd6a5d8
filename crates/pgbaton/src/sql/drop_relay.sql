-- Drops a relay, its lanes, positions and messages that were set aside. What only it kept is emptied by and by. Only the schema's owner may. A new statement
-- after `register_lock` and `claim_lock` on all its lanes: no acknowledgement of a former owner can appear afterwards.
-- Parameters: $1 the relay. Rows: one; none if it is not registered, or somebody owns a lane or runs it. Locks: its rows.
with relay as (
  select name from pgbaton.relay r where r.name = $1::text
    and not exists (select from pgbaton.replica p where r.name = any(p.relays))
    and not exists (select from pgbaton.lane l where l.relay = r.name and l.owner is not null) for update
), positions as (
  delete from pgbaton.position p using relay where p.relay = relay.name
), parked as (
  delete from pgbaton.parked p using relay where p.relay = relay.name
), lanes as (
  delete from pgbaton.lane l using relay where l.relay = relay.name
), gone as (
  delete from pgbaton.relay r using relay where r.name = relay.name returning r.name
)
select name from gone
