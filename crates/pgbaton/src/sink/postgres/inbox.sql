-- The inbox of pgbaton's `postgres` sink and its fence. Run by the owner of the schema {schema}.
-- Readers may add columns, indexes and triggers to the inbox, and delete what they have dealt with: a message that was
-- deleted is not delivered again, since the fence remembers how far each lane is. (Unless the outbox's database fails over
-- to a standby that lacks its latest positions: those messages come again, and are dropped only if they are still here.)
create schema if not exists {schema};
create table {schema}.{table} (
  relay        text        not null,
  message_id   text        not null,
  topic        text        not null,
  key          text,
  headers      json,
  payload      bytea,
  payload_json json,
  created_at   timestamptz not null,
  seq          bigint      generated always as identity,  -- order of arrival; per key it is the order of commit
  received_at  timestamptz not null default pg_catalog.clock_timestamp(),
  primary key (relay, message_id)
);
create table {schema}.{table}_fence (
  relay    text    not null,
  lane     integer not null,
  epoch    bigint  not null,
  position bytea,
  primary key (relay, lane)
);
grant usage on schema {schema} to {role};
grant insert, select (relay, message_id) on {schema}.{table} to {role};
grant insert, select, update on {schema}.{table}_fence to {role};
