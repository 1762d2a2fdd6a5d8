-- 0001: the native outbox, and what replicas know of relays, lanes and positions.
--
-- Run by `pgbaton migrate` in one transaction, under a lock, in the schema `pgbaton` that exists by then.
-- Older executables: there are none.
--
-- Rules that the relay relies on, and refuses to start without (pgbaton checks them at start):
--   * `xid` stands before `id`, and its default takes the transaction's id before `id` takes a number;
--   * `id` is always generated, without a cache, in steps of one, without a cycle.
-- So if the last number given out is L, and afterwards a transaction takes the id X, then every transaction
-- from X on has only numbers above L. Reading without gaps rests on that (ARCHITECTURE.md, "Reading").

-- Which server and database this schema was made on. A copy restored elsewhere has other transaction ids,
-- so every position in it would be wrong: the relay compares this row and refuses.
-- `timeline` is the newest that a replica has lived with for a whole ttl: leases granted in a state that a fail-over
-- lost are over by then, so that lanes may be claimed.
create table pgbaton.home (
  only_row          boolean primary key default true check (only_row),
  system_identifier bigint  not null,
  database          oid     not null,
  timeline          integer not null
);
insert into pgbaton.home (system_identifier, database, timeline)
  select c.system_identifier, d.oid,
         ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer
  from pg_catalog.pg_control_system() c, pg_catalog.pg_database d
  where d.datname = pg_catalog.current_database();

-- The incarnation: system identifier, database, timeline. Null while the server is in recovery.
-- The timeline is that of the current write position: the control file lags behind a promotion by minutes.
-- (In PL/pgSQL, since its plans are kept: every statement of a replica asks for it.)
create function pgbaton.incarnation() returns text
  language plpgsql volatile
as $$
begin
  if pg_catalog.pg_is_in_recovery() then
    return null;
  end if;
  return pg_catalog.format('%s/%s/%s',
    (select c.system_identifier from pg_catalog.pg_control_system() c),
    (select d.oid from pg_catalog.pg_database d where d.datname operator(pg_catalog.=) pg_catalog.current_database()),
    pg_catalog.concat('x', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer);
end $$;

-- Messages. Producers insert; nobody updates or deletes; a leaf is emptied by truncate.
create table pgbaton.outbox (
  xid          xid8        not null default pg_catalog.pg_current_xact_id(),
  id           bigint      not null generated always as identity,
  segment      smallint    not null
               default ((extract(epoch from pg_catalog.statement_timestamp())::bigint / 3600) % 8)::smallint,
  -- Bytes of the message, known without fetching it: large ones are read one at a time.
  size         integer     not null generated always as (least(2147483647,
                 pg_catalog.octet_length(topic)::bigint + coalesce(pg_catalog.octet_length(key), 0)
                 + coalesce(pg_catalog.octet_length(headers::text), 0) + coalesce(pg_catalog.octet_length(payload), 0)
                 + coalesce(pg_catalog.octet_length(payload_json::text), 0))::integer) stored,
  topic        text        not null constraint outbox_topic_is_empty check (topic <> ''),
  key          text,
  payload      bytea,
  payload_json json,
  headers      json        constraint outbox_headers_are_not_an_object check (pg_catalog.json_typeof(headers) = 'object'),
  created_at   timestamptz not null default pg_catalog.statement_timestamp(),
  message_id   uuid        not null default pg_catalog.gen_random_uuid(),
  -- Decides the lane. Defined here, not in the executable, so that no two replicas can disagree about it.
  hash         bigint      not null generated always as
               (pg_catalog.hashtextextended(coalesce(key, message_id::text) collate "C", 0)) stored,
  constraint outbox_has_two_payloads check (pg_catalog.num_nonnulls(payload, payload_json) <= 1),
  -- A row larger than a protocol message could never be read again.
  constraint outbox_message_is_larger_than_256_mib check (size <= 268435456)
) partition by list (segment);

create table pgbaton.outbox_0 partition of pgbaton.outbox for values in (0);
create table pgbaton.outbox_1 partition of pgbaton.outbox for values in (1);
create table pgbaton.outbox_2 partition of pgbaton.outbox for values in (2);
create table pgbaton.outbox_3 partition of pgbaton.outbox for values in (3);
create table pgbaton.outbox_4 partition of pgbaton.outbox for values in (4);
create table pgbaton.outbox_5 partition of pgbaton.outbox for values in (5);
create table pgbaton.outbox_6 partition of pgbaton.outbox for values in (6);
create table pgbaton.outbox_7 partition of pgbaton.outbox for values in (7);

create index outbox_id on pgbaton.outbox (id);          -- windows
create index outbox_xid_id on pgbaton.outbox (xid, id); -- stragglers

-- Which leaves hold a message with an id above this. Most windows lie in one leaf, and planning one over all of them
-- costs three times as much as over one. (In PL/pgSQL, since its plans are kept; the settings make them walk the id.)
create function pgbaton.leaves(above bigint) returns smallint[]
  language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  set jit = off set row_security = off
as $$
begin
  if (select s.last_value from pgbaton.outbox_id_seq s) operator(pg_catalog.<=) above then
    return '{}';
  end if;
  return pg_catalog.array_remove(array[
    (select 0::smallint from pgbaton.outbox_0 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 1::smallint from pgbaton.outbox_1 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 2::smallint from pgbaton.outbox_2 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 3::smallint from pgbaton.outbox_3 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 4::smallint from pgbaton.outbox_4 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 5::smallint from pgbaton.outbox_5 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 6::smallint from pgbaton.outbox_6 o where o.id operator(pg_catalog.>) above order by o.id limit 1),
    (select 7::smallint from pgbaton.outbox_7 o where o.id operator(pg_catalog.>) above order by o.id limit 1)
  ], null);
end $$;

-- `pgbaton.send`: what an application calls in its own transaction. Returns the message's number in the log.
create function pgbaton.send(topic text, payload json, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid()) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload_json, headers, message_id)
    values (send.topic, send.key, send.payload, send.headers, send.message_id) returning id;
end;
create function pgbaton.send(topic text, payload jsonb, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid()) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload_json, headers, message_id)
    values (send.topic, send.key, send.payload::json, send.headers, send.message_id) returning id;
end;
create function pgbaton.send(topic text, payload bytea, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid()) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload, headers, message_id)
    values (send.topic, send.key, send.payload, send.headers, send.message_id) returning id;
end;
create function pgbaton.send(topic text, payload text, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid()) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload, headers, message_id)
    values (send.topic, send.key, pg_catalog.convert_to(send.payload, 'UTF8'), send.headers, send.message_id) returning id;
end;

-- Tells listening replicas of new messages. Not attached to the outbox unless `pgbaton wake on` does it, since a
-- transaction that notifies commits only after all others that do: it costs producers more than polling costs anybody.
create function pgbaton.wake() returns trigger
  language plpgsql set search_path = pg_catalog
as $$ begin perform pg_catalog.pg_notify('pgbaton', ''); return null; end $$;

-- A relay is registered by the first replica that has it, together with its lanes and their first positions.
create table pgbaton.relay (
  name          text primary key,
  registered_at timestamptz not null default pg_catalog.now()
);

-- A running process. `beat` grows with each renewal of its lease; nobody compares clocks.
-- `relays` are those it runs and still takes lanes for: empty once it is leaving.
create table pgbaton.replica (
  id         uuid primary key,
  name       text        not null,
  version    text        not null,
  relays     text[]      not null,
  started_at timestamptz not null default pg_catalog.now(),
  ttl_ms     bigint      not null,
  beat       bigint      not null default 0
) with (fillfactor = 20);   -- renewals stay on their page and touch no index

-- The unit of ownership. The epoch grows by one each time the lane changes hands.
create table pgbaton.lane (
  relay text    not null references pgbaton.relay,
  lane  integer not null,
  lanes integer not null,
  owner uuid references pgbaton.replica on delete set null,
  epoch bigint  not null default 0,
  primary key (relay, lane),
  check (lanes > 0 and lanes & (lanes - 1) = 0 and lane >= 0 and lane < lanes)
) with (fillfactor = 50);

-- The advisory lock of a lane: shared by acknowledgements, exclusive for whoever changes its owner or epoch.
create function pgbaton.lane_lock(relay text, lane integer) returns bigint
  language sql immutable
begin atomic
  select pg_catalog.hashtextextended('pgbaton.lane ' || lane_lock.relay || ' ' || lane_lock.lane, 0);
end;

-- How far each lane has been dealt with: insert only. The newest has the highest epoch, then the highest seq.
-- Two leaves take turns: the one that is not `position_leaf.leaf` is emptied after its newest rows were copied.
create table pgbaton.position_leaf (
  only_row boolean  primary key default true check (only_row),
  leaf     smallint not null check (leaf in (0, 1))
) with (fillfactor = 20);
insert into pgbaton.position_leaf (leaf) values (0);

create table pgbaton.position (
  leaf       smallint    not null,
  relay      text        not null,
  lane       integer     not null,
  epoch      bigint      not null,
  seq        bigint      not null,  -- counted by the owner within its epoch
  batch      bigint      not null,  -- number of the lane's last batch that was handed to the sink
  consumed   pg_snapshot not null,
  floor      bigint      not null,
  target     pg_snapshot,
  ceiling    bigint,
  last       bigint      not null,
  l          bigint,                -- the last number its replica had read from the sequence …
  x          xid8,                  -- … before this transaction took this id
  written_at timestamptz not null default pg_catalog.now(),
  check ((target is null) = (ceiling is null))
) partition by list (leaf);
create table pgbaton.position_0 partition of pgbaton.position for values in (0);
create table pgbaton.position_1 partition of pgbaton.position for values in (1);
create unique index position_newest on pgbaton.position (leaf, relay, lane, epoch desc, seq desc);
