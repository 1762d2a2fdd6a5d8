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

-- Which server, database and table this schema was made on. A copy restored elsewhere has other transaction ids, so
-- every position in it would be wrong: the relay compares this row and refuses.
create table pgbaton.home (
  only_row          boolean  primary key default true check (only_row),
  system_identifier bigint   not null,
  database          oid      not null,
  -- Kept by pg_upgrade, and not by a dump: the table's oid, and the transaction that made all this, which is also the xmin of
  -- the row of migration 1.
  outbox            oid      not null,
  made_by           xid8     not null default pg_catalog.pg_current_xact_id(),
  -- The newest timeline that a replica has lived with for a whole ttl: leases granted in a state that a fail-over lost are
  -- over by then, so that lanes may be claimed.
  timeline          integer  not null,
  -- Incarnations from before pg_upgrade: a sink's position that names one of them still counts.
  former            text[]   not null default '{}',
  -- Timelines of this server up to this one were given up for this one, by a person's word.
  forsaken          integer  not null default 0
);

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
  deliver_at   timestamptz,  -- not before then, by this server's clock
  message_id   uuid        not null default pg_catalog.gen_random_uuid(),
  -- Decides the lane. Defined here, not in the executable, so that no two replicas can disagree about it.
  hash         bigint      not null generated always as
               (pg_catalog.hashtextextended(coalesce(key, message_id::text) collate "C", 0)) stored,
  constraint outbox_has_two_payloads check (pg_catalog.num_nonnulls(payload, payload_json) <= 1),
  -- A row larger than a protocol message could never be read again.
  constraint outbox_message_is_larger_than_256_mib check (size <= 268435456)
) partition by list (segment);

create index outbox_id on pgbaton.outbox (id);          -- windows
create index outbox_xid_id on pgbaton.outbox (xid, id); -- stragglers

insert into pgbaton.home (system_identifier, database, outbox, timeline)
  select c.system_identifier, d.oid, 'pgbaton.outbox'::regclass,
         ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer
  from pg_catalog.pg_control_system() c, pg_catalog.pg_database d
  where d.datname = pg_catalog.current_database();

-- The ring of segments: the time says which one new messages go to, and it is come back to after a whole round. Changed
-- by `pgbaton segments set` alone, since the outbox's default says the same.
create table pgbaton.ring (
  only_row  boolean  primary key default true check (only_row),
  segments  smallint not null check (segments between 3 and 64),
  seconds   integer  not null check (seconds between 1 and 31 * 86400),
  retention interval not null check (retention >= interval '0')
);

-- Each segment there is: also those that a larger ring had, until somebody drops them. What was emptied last is
-- remembered: a position that has not passed it was set back.
create table pgbaton.segment (
  segment     smallint primary key,
  emptied_at  timestamptz,
  emptied_by  xid8,    -- the transaction that did it
  emptied_least xid8,  -- the least and the greatest transaction id that were in it
  emptied_xid xid8,
  emptied_id  bigint   -- the greatest message number that was in it
);

create function pgbaton.segment_at(at timestamptz) returns smallint
  language sql stable
begin atomic
  select ((extract(epoch from segment_at.at)::bigint / r.seconds) % r.segments)::smallint from pgbaton.ring r;
end;

-- Makes the ring of this many segments, each written to for this many seconds, and what depends on their number. Never
-- removes a segment: one that is not in the ring any more is emptied like all others, and stays.
-- Locks: the outbox, exclusively, until the transaction ends. Only the schema's owner can run it.
create function pgbaton.set_ring(segments integer, seconds integer, retention interval) returns void
  language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
  looks text;
  reader record;
begin
  insert into pgbaton.ring (segments, seconds, retention) values (segments, seconds, retention)
    on conflict (only_row) do update
    set segments = excluded.segments, seconds = excluded.seconds, retention = excluded.retention;
  for n in 0 .. set_ring.segments - 1 loop
    if not exists (select from pgbaton.segment s where s.segment = n) then
      execute format('create table pgbaton.outbox_%s partition of pgbaton.outbox for values in (%s)', n, n);
      insert into pgbaton.segment (segment) values (n);
      -- Who may read the first one may read this one.
      for reader in select distinct a.grantee::regrole as name
          from pg_class c, aclexplode(c.relacl) a
          where c.oid = 'pgbaton.outbox_0'::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner and a.grantee <> 0 loop
        execute format('grant select on pgbaton.outbox_%s to %s', n, reader.name);
      end loop;
    end if;
  end loop;
  execute format('alter table only pgbaton.outbox alter column segment set default '
    '((extract(epoch from pg_catalog.statement_timestamp())::bigint / %s) %% %s)::smallint', seconds, segments);
  -- Which segments hold a message with an id above this. Most windows lie in one segment, and planning one over all of
  -- them costs three times as much as over one. (In PL/pgSQL, since its plans are kept; the settings make them walk the id.)
  -- With the outbox locked no standby is waited for.
  perform set_config('synchronous_commit', 'local', true);
  select string_agg(format(
      '(select %s::smallint from pgbaton.outbox_%s o where o.id operator(pg_catalog.>) above order by o.id limit 1)',
      s.segment, s.segment), E',\n    ' order by s.segment)
    into looks from pgbaton.segment s;
  execute format($make$
create or replace function pgbaton.segments_above(above bigint) returns smallint[]
  language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  set jit = off set row_security = off
as $body$
begin
  if (select s.last_value from pgbaton.outbox_id_seq s) operator(pg_catalog.<=) above then
    return '{}';
  end if;
  return pg_catalog.array_remove(array[
    %s
  ], null);
end $body$
$make$, looks);
end $$;

select pgbaton.set_ring(8, 3600, interval '0');

-- `pgbaton.send`: what an application calls in its own transaction. Returns the message's number in the log.
create function pgbaton.send(topic text, payload json, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid(),
                             deliver_at timestamptz default null) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload_json, headers, message_id, deliver_at)
    values (send.topic, send.key, send.payload, send.headers, send.message_id, send.deliver_at)
    returning id;
end;
create function pgbaton.send(topic text, payload jsonb, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid(),
                             deliver_at timestamptz default null) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload_json, headers, message_id, deliver_at)
    values (send.topic, send.key, send.payload::json, send.headers, send.message_id, send.deliver_at)
    returning id;
end;
create function pgbaton.send(topic text, payload bytea, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid(),
                             deliver_at timestamptz default null) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload, headers, message_id, deliver_at)
    values (send.topic, send.key, send.payload, send.headers, send.message_id, send.deliver_at)
    returning id;
end;
create function pgbaton.send(topic text, payload text, key text default null, headers json default null,
                             message_id uuid default pg_catalog.gen_random_uuid(),
                             deliver_at timestamptz default null) returns bigint
  language sql volatile
begin atomic
  insert into pgbaton.outbox (topic, key, payload, headers, message_id, deliver_at)
    values (send.topic, send.key, pg_catalog.convert_to(send.payload, 'UTF8'), send.headers, send.message_id, send.deliver_at)
    returning id;
end;

-- Tells listening replicas of new messages. Not attached to the outbox unless `pgbaton wake on` does it, since a
-- transaction that notifies commits only after all others that do: it costs producers more than polling costs anybody.
create function pgbaton.wake() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp
as $$ begin perform pg_catalog.pg_notify('pgbaton', ''); return null; end $$;

-- A relay is registered by the first replica that has it, together with its lanes and their first positions.
create table pgbaton.relay (
  name          text        primary key,
  -- How many lanes it is to have: those of a smaller number are split by their owners.
  lanes         integer     not null check (lanes > 0 and lanes & (lanes - 1) = 0),
  -- A new one when it is dropped and registered again, or re-based: a sink's position that names another does not count.
  registration  uuid        not null default pg_catalog.gen_random_uuid(),
  registered_at timestamptz not null default pg_catalog.now(),
  registered_by xid8        not null default pg_catalog.pg_current_xact_id(),
  -- Null for a relay of the outbox. Else it delivers the rows of a table that others made: which one, and what all its
  -- replicas have to agree about, as `pgbaton adopt` shows it. One relay a table: a mark cannot tell two of them apart.
  adopted       oid         unique,
  definition    jsonb,
  -- Grows with whatever a command does to what is set aside: what replicas know of that counts no more.
  changes       bigint      not null default 0,
  check ((adopted is null) = (definition is null))
) with (fillfactor = 50);

-- The advisory lock that whoever empties a segment takes exclusively: "every lane of every relay has passed it" must not
-- be asked while a relay is being registered, split or set back, which all take it shared.
create function pgbaton.relays_lock() returns bigint
  language sql immutable
begin atomic
  select pg_catalog.hashtextextended('pgbaton.relays', 0);
end;

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
  deaths integer not null default 0,  -- owners in a row that died before they had held it for a minute
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
  -- From here to `last`: how far it is in the outbox. Null for an adopted table, whose rows say themselves what is pending.
  consumed   pg_snapshot,
  floor      bigint,
  target     pg_snapshot,
  ceiling    bigint,
  last       bigint,
  l          bigint,                -- the last number its replica had read from the sequence …
  x          xid8,                  -- … before this transaction took this id
  set_back   boolean     not null default false,  -- on purpose, to send again what a sink had lost
  written_at timestamptz not null default pg_catalog.now(),
  check ((target is null) = (ceiling is null)),
  check (pg_catalog.num_nulls(consumed, floor, last) in (0, 3))
) partition by list (leaf);
create table pgbaton.position_0 partition of pgbaton.position for values in (0);
create table pgbaton.position_1 partition of pgbaton.position for values in (1);
create unique index position_newest on pgbaton.position (leaf, relay, lane, epoch desc, seq desc);

-- Each lane with its newest position.
create view pgbaton.newest as
  select l.relay, l.lane, l.lanes, l.owner, l.epoch as lane_epoch, n.*
  from pgbaton.lane l left join lateral (
    select m.epoch, m.seq, m.batch, m.consumed, m.floor, m.target, m.ceiling, m.last, m.l, m.x, m.written_at
    from (values (0), (1)) as f(leaf) cross join lateral (
      select * from pgbaton.position p
      where p.leaf = f.leaf and p.relay = l.relay and p.lane = l.lane order by p.epoch desc, p.seq desc limit 1
    ) m
    order by m.epoch desc, m.seq desc limit 1
  ) n on true;

-- The same of the relays that read the outbox: adopted tables keep no segment.
create view pgbaton.in_outbox as
  select n.* from pgbaton.newest n join pgbaton.relay r on r.name = n.relay where r.adopted is null;

-- Messages that were set aside: tried again later, waiting behind one of their key that is, or given up. A position passes a
-- message only in the transaction that puts it here. Of each key the first one is tried; a message without a key is by itself.
create table pgbaton.parked (
  relay        text        not null,
  id           text        not null,  -- the message id
  hash         bigint      not null,  -- of the key, as in the outbox
  number       bigint      not null generated always as identity,  -- the order within a key
  -- Where it stands in the outbox; null for an adopted table's, which is found by its row's id, and whose content stays there.
  xid          xid8,
  log_id       bigint,
  row_id       text[],
  row_hash     bigint      generated always as (pg_catalog.hash_array_extended(row_id, 0)) stored,  -- looks compare this
  topic        text        not null,
  key          text,
  headers      json,
  payload      bytea,
  payload_json json,
  size         integer     not null,
  created_at   timestamptz not null,
  deliver_at   timestamptz,           -- not before then
  attempts     integer     not null default 0,
  -- When it is tried next, by this server's clock. Null while it waits behind another one of its key, and once it is dead.
  next_at      timestamptz,
  first_at     timestamptz,           -- the first and the last attempt
  last_at      timestamptz,
  code         text,                  -- of the last fault
  faults       jsonb       not null default '[]',  -- the last ten: when, code, text, replica
  dead_at      timestamptz,
  -- Later messages of its key wait behind it: always, but for a dead one that they go past.
  holds        boolean     not null default true,
  -- A dead row of an adopted table that was discarded: it is here that looks leave it out, and for nothing else.
  given_up     boolean     not null default false,
  copied       boolean     not null default false,  -- once it was dead, into the outbox
  -- It may have killed its lane's owners: it is tried alone, after it was written down who does. How many died doing that.
  suspect      boolean     not null default false,
  trying       uuid,
  deaths       integer     not null default 0,
  parked_at    timestamptz not null default pg_catalog.clock_timestamp(),
  primary key (relay, id),
  check ((xid is null) = (log_id is null) and (log_id is null) <> (row_id is null)),
  check (next_at is null or dead_at is null),
  check (holds or dead_at is not null)
) with (fillfactor = 80);
create index parked_key on pgbaton.parked (relay, hash, number) where holds;                      -- who waits behind whom
create unique index parked_head on pgbaton.parked (relay, hash) where next_at is not null;        -- one of each key is tried
create index parked_due on pgbaton.parked (relay, next_at) include (hash) where next_at is not null;
create index parked_written on pgbaton.parked (relay, (greatest(parked_at, last_at))) where next_at is not null;
create index parked_old on pgbaton.parked (relay, dead_at) where dead_at is not null and not holds;
create index parked_lane on pgbaton.parked (relay, (hash & 4095)) where holds;  -- no relay has more lanes
create index parked_dead on pgbaton.parked (relay, dead_at) where dead_at is not null;
create index parked_trying on pgbaton.parked (trying) where trying is not null;
create index parked_row on pgbaton.parked (relay, row_hash) where row_id is not null;

-- What is not delivered until an operator says so: all of a relay, one of its lanes, a key, or topics (`*` stands for any text).
create table pgbaton.pause (
  relay      text        not null references pgbaton.relay on delete cascade,
  lane       integer,
  key        text,
  topic      text,
  topic_like text        generated always as (replace(replace(replace(replace(topic, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')) stored,
  paused_at  timestamptz not null default pg_catalog.clock_timestamp(),
  who        text        not null default session_user,
  unique nulls not distinct (relay, lane, key, topic),
  check (pg_catalog.num_nonnulls(lane, key, topic) <= 1)
);

-- So many milliseconds from now, by this server's clock. What is due at once is, whatever becomes of the clock.
create function pgbaton.after(milliseconds bigint) returns timestamptz
  language sql volatile
begin atomic
  select case when coalesce(after.milliseconds, 0) = 0 then 'epoch'
              else pg_catalog.clock_timestamp() + after.milliseconds * interval '1 ms' end;
end;

-- When a message that is set aside is tried next, if it could be at that moment: never while its key or its topic is paused.
create function pgbaton.next_try(relay text, key text, topic text, at timestamptz) returns timestamptz
  language sql stable
begin atomic
  select case when exists (
      select from pgbaton.pause p
      where p.relay = next_try.relay and (p.key = next_try.key or next_try.topic like p.topic_like))
    then 'infinity' else next_try.at end;
end;

-- Headers with some more. Their text is not parsed: not all that is JSON can be stored as jsonb.
create function pgbaton.with_headers(headers json, more jsonb) returns json
  language sql immutable
begin atomic
  select case when with_headers.headers is null then with_headers.more::text
    else pg_catalog.regexp_replace(with_headers.headers::text, '\s*\}\s*$', '')
      || case when with_headers.headers::text ~ '^\s*\{\s*\}\s*$' then '' else ', ' end || pg_catalog.substr(with_headers.more::text, 2) end::json;
end;

-- Messages of the outbox that are dead are copied into it, each once: under another topic, with headers that say of which message, and why. A
-- copy that dies itself is not copied, and neither is what has no room for these headers. With this the relay's role may insert into the
-- outbox what it has set aside, and choose neither xid nor id nor segment.
create function pgbaton.copy_dead(relay text, ids text[], topic text) returns void
  language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
  with dead as (
    update pgbaton.parked p set copied = true
    where p.relay = copy_dead.relay and p.id = any(copy_dead.ids) and p.dead_at is not null and not p.copied and p.log_id is not null
    returning p.*
  )
  insert into pgbaton.outbox (topic, key, headers, payload, payload_json)
  select copy_dead.topic, d.key,
         pgbaton.with_headers(d.headers, jsonb_build_object(
           'pgbaton-dead-of', d.id, 'pgbaton-dead-relay', d.relay, 'pgbaton-dead-topic', d.topic, 'pgbaton-dead-code', d.code,
           'pgbaton-dead-fault', d.faults -> -1 ->> 'text')),
         d.payload, d.payload_json
  from dead d
  where (d.headers is null or d.headers::text not like '%"pgbaton-dead-of"%') and d.size < 268000000 order by d.number;
end;

-- What operators have done: by whom is the login role, which nobody chooses by himself.
create table pgbaton.audit (
  number   bigint      not null generated always as identity primary key,
  at       timestamptz not null default pg_catalog.clock_timestamp(),
  who      text        not null default session_user,
  address  inet        default pg_catalog.inet_client_addr(),
  what     text        not null,
  relay    text,
  details  jsonb       not null,
  messages bigint
);

-- A time for people and programs: in UTC.
create function pgbaton.utc(at timestamptz) returns text
  language sql stable strict parallel safe
as $$ select pg_catalog.to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- Who still needs a segment, or why it is kept; null if nobody does. A lane has passed it when everything in it is visible
-- in S: the greatest transaction id lies below xmax(S), and none of xip(S) is in it. Or visible in T and not above `last`.
-- (In PL/pgSQL: each statement sees what committed before it. The settings make each look one walk down an index.)
create function pgbaton.needs(which smallint) returns text
  language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off set row_security = off
as $$
declare
  leaf constant text := format('pgbaton.outbox_%s', which);
  greatest_xid xid8;
  greatest_id bigint;
  newest timestamptz;
  running xid8[];
  lane record;
begin
  execute format('select o.xid from %s o order by o.xid desc, o.id desc limit 1', leaf) into greatest_xid;
  if greatest_xid is null then
    return null;
  end if;
  execute format('select o.id, o.created_at from %s o order by o.id desc limit 1', leaf) into greatest_id, newest;
  if not exists (select from pgbaton.relay r where r.adopted is null) then
    return 'no relay that reads the outbox is registered';
  end if;
  -- A lane of n covers the n-th part of all hashes, and together they have to cover all; any n divides 2^20.
  for lane in
    select r.name from pgbaton.relay r
    where r.adopted is null and (select sum((1 << 20) / l.lanes) from pgbaton.lane l where l.relay = r.name) is distinct from 1 << 20
  loop
    return format('relay %s, which lacks lanes', lane.name);
  end loop;
  -- Of all transactions that some lane's S or T saw running, those that are in this segment.
  select array_agg(distinct x.xid) into running
    from pgbaton.in_outbox n cross join lateral (
      select pg_snapshot_xip(n.consumed) union all select pg_snapshot_xip(n.target)) x(xid)
    where x.xid <= greatest_xid;
  execute format('select array_agg(x.xid) from unnest($1) x(xid) where exists (select from %s o where o.xid = x.xid)', leaf)
    into running using running;
  select n.relay, n.lane into lane from pgbaton.in_outbox n
    where ((greatest_xid < pg_snapshot_xmax(n.consumed)
            and not exists (select from pg_snapshot_xip(n.consumed) x(xid) where x.xid = any(running)))
           or (greatest_id <= n.last and greatest_xid < pg_snapshot_xmax(n.target)
               and not exists (select from pg_snapshot_xip(n.target) x(xid) where x.xid = any(running)))) is not true
    limit 1;
  if found then
    return format('relay %s, lane %s', lane.relay, lane.lane);
  end if;
  if newest > clock_timestamp() - (select r.retention from pgbaton.ring r) then
    return 'retention';
  end if;
  return null;
end $$;

-- Empties a segment that nobody needs, and says why it did not, or null. Runs with the owner's rights: the relay's role can
-- empty what is passed, and nothing else. Locks: the segment, exclusively, until the transaction ends; waits at most 50 ms
-- for that, since inserts into it and reads wait behind. Never the segment in use, nor the one that is next in a moment.
-- Invariant: what is truncated was looked at in a statement after the lock was had.
create function pgbaton.empty_segment(which smallint) returns text
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
as $$
declare
  why text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return 'this transaction does not see what has committed since it began';
  end if;
  if which in (pgbaton.segment_at(clock_timestamp()), pgbaton.segment_at(clock_timestamp() + interval '5 s')) then
    return 'in use';
  end if;
  if not pg_try_advisory_xact_lock(pgbaton.relays_lock()) then
    return 'a relay is being registered, split or set back';
  end if;
  why := pgbaton.needs(which);
  if why is not null then
    return why;
  end if;
  begin
    execute format('lock table pgbaton.outbox_%s in access exclusive mode', which);
  exception when lock_not_available then
    return 'another transaction uses it';
  end;
  why := pgbaton.needs(which);
  if why is not null then
    return why;
  end if;
  execute format('update pgbaton.segment s set emptied_at = clock_timestamp(), emptied_by = pg_current_xact_id(),'
    ' emptied_least = (select o.xid from pgbaton.outbox_%1$s o order by o.xid, o.id limit 1),'
    ' emptied_xid = (select o.xid from pgbaton.outbox_%1$s o order by o.xid desc, o.id desc limit 1),'
    ' emptied_id = (select o.id from pgbaton.outbox_%1$s o order by o.id desc limit 1)'
    ' where s.segment = $1 and exists (select from pgbaton.outbox_%1$s)', which) using which;
  execute format('truncate pgbaton.outbox_%s', which);
  -- With the lock held no standby is waited for: one that lacks this only has rows that nobody needs.
  perform set_config('synchronous_commit', 'local', true);
  return null;
end $$;

-- Takes all positions back to what is certain in this database, after a restore or whatever else made them wrong: a message
-- that every relay had dealt with, by messages and positions alike, counts as dealt with; every other one is delivered, again
-- perhaps. Gives the number of messages there are and of those to be delivered. Only the schema's owner can run it, in a
-- transaction of its own, while no replica runs.
-- Locks: the outbox against inserts, until the transaction ends: nobody has inserted a message and not yet committed.
-- Invariant: the snapshot S that all positions start from is this server's own, taken under the lock before this transaction
-- has an id. What is to be delivered gets that id, which S does not see; what is not gets one that every snapshot sees.
create function pgbaton.rebase(forsake integer, out messages bigint, out due bigint)
  language plpgsql volatile set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = on
as $$
declare
  s pg_snapshot;
  lacking record;
  number bigint;
  batches jsonb;
begin
  lock table pgbaton.outbox in share row exclusive mode;
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'pgbaton.rebase runs in a transaction of its own';
  end if;
  select pg_current_snapshot() into s;
  -- A relay whose lanes do not cover all hashes, as in `needs`, begins again.
  for lacking in
    select r.name, r.lanes, (select coalesce(max(l.epoch), 0) from pgbaton.lane l where l.relay = r.name) as epoch
    from pgbaton.relay r
    where (select sum((1 << 20) / l.lanes) from pgbaton.lane l where l.relay = r.name) is distinct from 1 << 20
  loop
    delete from pgbaton.lane l where l.relay = lacking.name;
    delete from pgbaton.position p where p.relay = lacking.name;
    insert into pgbaton.lane (relay, lane, lanes, epoch)
      select lacking.name, n, lacking.lanes, lacking.epoch from generate_series(0, lacking.lanes - 1) n;
  end loop;
  -- Everything that S sees lies at or below the ceiling: what was inserted since a restore bears small transaction ids.
  with lane as materialized (
    select n.lane, n.lanes, n.consumed, n.target, n.last, coalesce(n.ceiling, n.last) as ceiling from pgbaton.in_outbox n
  ), due as materialized (
    select o.id from pgbaton.outbox o cross join (select distinct l.lanes from lane l) of
      join lane l on l.lanes = of.lanes and l.lane = (o.hash & (of.lanes - 1))::integer
    where ((o.id <= l.ceiling and pg_visible_in_snapshot(o.xid, l.consumed))
           or (o.id <= l.last and pg_visible_in_snapshot(o.xid, l.target))) is not true
  ), moved as (
    -- What is due becomes a message of this transaction, which no position has passed; all else one of the first
    -- transaction there is, 3, which all have.
    update pgbaton.outbox o
    set xid = case when not exists (select from lane) or o.id in (select d.id from due d) then pg_current_xact_id() else '3'::xid8 end
    returning xid
  )
  select count(*), count(*) filter (where xid <> '3') from moved into messages, due;
  select greatest((select case when q.is_called then q.last_value else 0 end from pgbaton.outbox_id_seq q),
                  (select max(o.id) from pgbaton.outbox o),
                  (select max(greatest(p.floor, p.ceiling, p.last, p.l)) from pgbaton.position p)) into number;
  if number > 0 then
    perform setval('pgbaton.outbox_id_seq', number);
  end if;
  select coalesce(jsonb_object_agg(n.relay || ' ' || n.lane, n.batch), '{}') into batches from pgbaton.newest n;
  delete from pgbaton.replica;
  update pgbaton.lane set owner = null, epoch = epoch + 1;
  -- A table that was restored is another one, by the same name. Looked for in the catalogue: `to_regclass` asks for rights on
  -- its schema, which the owner of this one need not have.
  update pgbaton.relay r set registration = gen_random_uuid(), registered_by = pg_current_xact_id(),
    adopted = coalesce((
      select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where format('"%s"."%s"', replace(n.nspname, '"', '""'), replace(c.relname, '"', '""')) = r.definition ->> 'table'), r.adopted);
  -- What is delivered anyway is read from the outbox, in its order; of all else every position has passed the message.
  delete from pgbaton.parked p using pgbaton.outbox o
    where o.id = p.log_id and o.message_id::text = p.id and o.xid = pg_current_xact_id() and p.dead_at is null;
  update pgbaton.parked p set xid = '3' where p.xid is not null;
  delete from pgbaton.position;
  insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, last)
    select f.leaf, l.relay, l.lane, l.epoch, 0, coalesce((batches ->> (l.relay || ' ' || l.lane))::bigint, 0),
           case when r.adopted is null then s end, case when r.adopted is null then 0 end,
           case when r.adopted is null then number end
    from pgbaton.lane l join pgbaton.relay r on r.name = l.relay, pgbaton.position_leaf f;
  update pgbaton.segment
    set emptied_at = null, emptied_by = null, emptied_least = null, emptied_xid = null, emptied_id = null;
  update pgbaton.home h set system_identifier = c.system_identifier, database = d.oid, outbox = 'pgbaton.outbox'::regclass,
      made_by = (select m.xmin::text::xid8 from pgbaton.migration m where m.version = 1),
      timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer, former = '{}',
      forsaken = greatest(h.forsaken, rebase.forsake)
    from pg_control_system() c, pg_database d where d.datname = current_database();
end $$;

-- After pg_upgrade, which keeps transaction ids and tables, and changes the system identifier and the timeline: takes the new
-- ones down, and the old ones as ours, so that sinks' positions which name them still count. Says why it did not, or null.
-- Only the schema's owner can run it. Locks: the row of pgbaton.home.
create function pgbaton.confirm() returns text
  language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
  home pgbaton.home;
  system bigint := (select c.system_identifier from pg_control_system() c);
  number bigint := (select case when q.is_called then q.last_value else q.last_value - 1 end from pgbaton.outbox_id_seq q);
  next_xid xid8;
begin
  select * into home from pgbaton.home for update;
  if home.outbox <> 'pgbaton.outbox'::regclass
     or home.made_by::xid is distinct from (select m.xmin from pgbaton.migration m where m.version = 1)
     or home.database <> (select d.oid from pg_database d where d.datname = current_database()) then
    return 'the outbox is another table than the one the positions were written for: this is a restored dump or a copy, '
           'which `pgbaton rebase` is for';
  end if;
  if home.system_identifier = system then
    return 'there is nothing to confirm: this is the server that the schema knows';
  end if;
  select pg_snapshot_xmax(pg_current_snapshot()) into next_xid;
  if exists (select from pgbaton.position p
             where greatest(pg_snapshot_xmax(p.consumed), pg_snapshot_xmax(p.target)) > next_xid
                or greatest(p.floor, p.ceiling, p.last, p.l) > number) then
    return 'positions name transactions or messages that this server has not had: it did not come from pg_upgrade, and '
           '`pgbaton rebase` is for it';
  end if;
  update pgbaton.home h set system_identifier = system,
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
    former = h.former || format('%s/%s/%s', home.system_identifier, home.database, home.timeline);
  return null;
end $$;
