-- What three roles need. Run by the database's owner; the roles may have other names (see `pgbaton grants --help`).
-- {migrate}: runs `pgbaton migrate` and owns the schema. Not used by replicas.
-- {relay}: what `pgbaton run` and the operator's commands connect as.
-- {producer}: applications that insert messages.

-- 1. Before `pgbaton migrate`, which then runs as {migrate}:
create schema if not exists pgbaton authorization {migrate};

-- 2. After each `pgbaton migrate`:
grant usage on schema pgbaton to {producer};

revoke execute on all functions in schema pgbaton from public;
{relay_grants}
-- A producer chooses neither xid nor id nor segment: reading without gaps rests on that.
grant insert (topic, key, payload, payload_json, headers, message_id, deliver_at) on pgbaton.outbox to {producer};
grant select (id, message_id) on pgbaton.outbox to {producer};
grant execute on function
  pgbaton.send(text, json, text, json, uuid, timestamptz), pgbaton.send(text, jsonb, text, json, uuid, timestamptz),
  pgbaton.send(text, bytea, text, json, uuid, timestamptz), pgbaton.send(text, text, text, json, uuid, timestamptz) to {producer};
