-- The schema after all migrations, as pg_dump shows it, with one leaf of each table for all.
-- Written by a test: PGBATON_BLESS=1.

CREATE SCHEMA pgbaton;

CREATE FUNCTION pgbaton.after(milliseconds bigint) RETURNS timestamp with time zone
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT
         CASE
             WHEN (COALESCE(milliseconds, (0)::bigint) = 0) THEN '1970-01-01 00:00:00+00'::timestamp with time zone
             ELSE (clock_timestamp() + ((milliseconds)::double precision * '00:00:00.001'::interval))
         END AS "case";
END;

CREATE FUNCTION pgbaton.confirm() RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION pgbaton.with_headers(headers json, more jsonb) RETURNS json
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
 SELECT (
         CASE
             WHEN (headers IS NULL) THEN (more)::text
             ELSE ((regexp_replace((headers)::text, '\s*\}\s*$'::text, ''::text) ||
             CASE
                 WHEN ((headers)::text ~ '^\s*\{\s*\}\s*$'::text) THEN ''::text
                 ELSE ', '::text
             END) || substr((more)::text, 2))
         END)::json AS json;
END;

CREATE TABLE pgbaton.outbox (
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    id bigint NOT NULL,
    segment smallint DEFAULT ((((EXTRACT(epoch FROM statement_timestamp()))::bigint / 3600) % (8)::bigint))::smallint NOT NULL,
    size integer GENERATED ALWAYS AS ((LEAST((2147483647)::bigint, (((((octet_length(topic))::bigint + COALESCE(octet_length(key), 0)) + COALESCE(octet_length((headers)::text), 0)) + COALESCE(octet_length(payload), 0)) + COALESCE(octet_length((payload_json)::text), 0))))::integer) STORED NOT NULL,
    topic text NOT NULL,
    key text,
    payload bytea,
    payload_json json,
    headers json,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    deliver_at timestamp with time zone,
    message_id uuid DEFAULT gen_random_uuid() NOT NULL,
    hash bigint GENERATED ALWAYS AS (hashtextextended((COALESCE(key, (message_id)::text) COLLATE "C"), (0)::bigint)) STORED NOT NULL,
    CONSTRAINT outbox_has_two_payloads CHECK ((num_nonnulls(payload, payload_json) <= 1)),
    CONSTRAINT outbox_headers_are_not_an_object CHECK ((json_typeof(headers) = 'object'::text)),
    CONSTRAINT outbox_message_is_larger_than_256_mib CHECK ((size <= 268435456)),
    CONSTRAINT outbox_topic_is_empty CHECK ((topic <> ''::text))
)
PARTITION BY LIST (segment);

CREATE TABLE pgbaton.parked (
    relay text NOT NULL,
    id text NOT NULL,
    hash bigint NOT NULL,
    number bigint NOT NULL,
    xid xid8,
    log_id bigint,
    row_id text[],
    row_hash bigint GENERATED ALWAYS AS (hash_array_extended(row_id, (0)::bigint)) STORED,
    topic text NOT NULL,
    key text,
    headers json,
    payload bytea,
    payload_json json,
    size integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    deliver_at timestamp with time zone,
    attempts integer DEFAULT 0 NOT NULL,
    next_at timestamp with time zone,
    first_at timestamp with time zone,
    last_at timestamp with time zone,
    code text,
    faults jsonb DEFAULT '[]'::jsonb NOT NULL,
    dead_at timestamp with time zone,
    holds boolean DEFAULT true NOT NULL,
    given_up boolean DEFAULT false NOT NULL,
    copied boolean DEFAULT false NOT NULL,
    suspect boolean DEFAULT false NOT NULL,
    trying uuid,
    deaths integer DEFAULT 0 NOT NULL,
    parked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT parked_check CHECK ((((xid IS NULL) = (log_id IS NULL)) AND ((log_id IS NULL) <> (row_id IS NULL)))),
    CONSTRAINT parked_check1 CHECK (((next_at IS NULL) OR (dead_at IS NULL))),
    CONSTRAINT parked_check2 CHECK ((holds OR (dead_at IS NOT NULL)))
)
WITH (fillfactor='80');

CREATE FUNCTION pgbaton.copy_dead(relay text, ids text[], topic text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    BEGIN ATOMIC
 WITH dead AS (
          UPDATE pgbaton.parked p SET copied = true
           WHERE ((p.relay = copy_dead.relay) AND (p.id = ANY (copy_dead.ids)) AND (p.dead_at IS NOT NULL) AND (NOT p.copied) AND (p.log_id IS NOT NULL))
           RETURNING p.relay,
             p.id,
             p.hash,
             p.number,
             p.xid,
             p.log_id,
             p.row_id,
             p.row_hash,
             p.topic,
             p.key,
             p.headers,
             p.payload,
             p.payload_json,
             p.size,
             p.created_at,
             p.deliver_at,
             p.attempts,
             p.next_at,
             p.first_at,
             p.last_at,
             p.code,
             p.faults,
             p.dead_at,
             p.holds,
             p.given_up,
             p.copied,
             p.suspect,
             p.trying,
             p.deaths,
             p.parked_at
         )
  INSERT INTO pgbaton.outbox (topic, key, headers, payload, payload_json)  SELECT copy_dead.topic AS topic,
             d.key,
             pgbaton.with_headers(d.headers, jsonb_build_object('pgbaton-dead-of', d.id, 'pgbaton-dead-relay', d.relay, 'pgbaton-dead-topic', d.topic, 'pgbaton-dead-code', d.code, 'pgbaton-dead-fault', ((d.faults -> '-1'::integer) ->> 'text'::text))) AS with_headers,
             d.payload,
             d.payload_json
            FROM dead d
           WHERE (((d.headers IS NULL) OR ((d.headers)::text !~~ '%"pgbaton-dead-of"%'::text)) AND (d.size < 268000000))
           ORDER BY d.number;
END;

CREATE FUNCTION pgbaton.empty_segment(which smallint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '50ms'
    AS $_$
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
end $_$;

CREATE FUNCTION pgbaton.incarnation() RETURNS text
    LANGUAGE plpgsql
    AS $$
begin
  if pg_catalog.pg_is_in_recovery() then
    return null;
  end if;
  return pg_catalog.format('%s/%s/%s',
    (select c.system_identifier from pg_catalog.pg_control_system() c),
    (select d.oid from pg_catalog.pg_database d where d.datname operator(pg_catalog.=) pg_catalog.current_database()),
    pg_catalog.concat('x', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer);
end $$;

CREATE FUNCTION pgbaton.lane_lock(relay text, lane integer) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
 SELECT hashtextextended(((('pgbaton.lane '::text || relay) || ' '::text) || lane), (0)::bigint) AS hashtextextended;
END;

CREATE FUNCTION pgbaton.needs(which smallint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET row_security TO 'off'
    AS $_$
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
end $_$;

CREATE TABLE pgbaton.pause (
    relay text NOT NULL,
    lane integer,
    key text,
    topic text,
    topic_like text GENERATED ALWAYS AS (replace(replace(replace(replace(topic, '\'::text, '\\'::text), '%'::text, '\%'::text), '_'::text, '\_'::text), '*'::text, '%'::text)) STORED,
    paused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    who text DEFAULT SESSION_USER NOT NULL,
    CONSTRAINT pause_check CHECK ((num_nonnulls(lane, key, topic) <= 1))
);

CREATE FUNCTION pgbaton.next_try(relay text, key text, topic text, at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    BEGIN ATOMIC
 SELECT
         CASE
             WHEN (EXISTS ( SELECT
                FROM pgbaton.pause p
               WHERE ((p.relay = next_try.relay) AND ((p.key = next_try.key) OR (next_try.topic ~~ p.topic_like))))) THEN 'infinity'::timestamp with time zone
             ELSE at
         END AS at;
END;

CREATE FUNCTION pgbaton.rebase(forsake integer, OUT messages bigint, OUT due bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'on'
    AS $$
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

CREATE FUNCTION pgbaton.relays_lock() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
 SELECT hashtextextended('pgbaton.relays'::text, (0)::bigint) AS hashtextextended;
END;

CREATE TABLE pgbaton.ring (
    only_row boolean DEFAULT true NOT NULL,
    segments smallint NOT NULL,
    seconds integer NOT NULL,
    retention interval NOT NULL,
    CONSTRAINT ring_only_row_check CHECK (only_row),
    CONSTRAINT ring_retention_check CHECK ((retention >= '00:00:00'::interval)),
    CONSTRAINT ring_seconds_check CHECK (((seconds >= 1) AND (seconds <= (31 * 86400)))),
    CONSTRAINT ring_segments_check CHECK (((segments >= 3) AND (segments <= 64)))
);

CREATE FUNCTION pgbaton.segment_at(at timestamp with time zone) RETURNS smallint
    LANGUAGE sql STABLE
    BEGIN ATOMIC
 SELECT ((((EXTRACT(epoch FROM segment_at.at))::bigint / r.seconds) % (r.segments)::bigint))::smallint AS int2
    FROM pgbaton.ring r;
END;

CREATE FUNCTION pgbaton.segments_above(above bigint) RETURNS smallint[]
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET row_security TO 'off'
    AS $$
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

CREATE FUNCTION pgbaton.send(topic text, payload bytea, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid(), deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload, headers, message_id, deliver_at)
   VALUES (send.topic, send.key, send.payload, send.headers, send.message_id, send.deliver_at)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload json, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid(), deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload_json, headers, message_id, deliver_at)
   VALUES (send.topic, send.key, send.payload, send.headers, send.message_id, send.deliver_at)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload jsonb, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid(), deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload_json, headers, message_id, deliver_at)
   VALUES (send.topic, send.key, (send.payload)::json, send.headers, send.message_id, send.deliver_at)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload text, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid(), deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload, headers, message_id, deliver_at)
   VALUES (send.topic, send.key, convert_to(send.payload, 'UTF8'::name), send.headers, send.message_id, send.deliver_at)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.set_ring(segments integer, seconds integer, retention interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
end $_$;

CREATE FUNCTION pgbaton.utc(at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$ select pg_catalog.to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

CREATE FUNCTION pgbaton.wake() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ begin perform pg_catalog.pg_notify('pgbaton', ''); return null; end $$;

CREATE TABLE pgbaton.audit (
    number bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    who text DEFAULT SESSION_USER NOT NULL,
    address inet DEFAULT inet_client_addr(),
    what text NOT NULL,
    relay text,
    details jsonb NOT NULL,
    messages bigint
);

ALTER TABLE pgbaton.audit ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME pgbaton.audit_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE pgbaton.home (
    only_row boolean DEFAULT true NOT NULL,
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    outbox oid NOT NULL,
    made_by xid8 DEFAULT pg_current_xact_id() NOT NULL,
    timeline integer NOT NULL,
    former text[] DEFAULT '{}'::text[] NOT NULL,
    forsaken integer DEFAULT 0 NOT NULL,
    CONSTRAINT home_only_row_check CHECK (only_row)
);

CREATE TABLE pgbaton.lane (
    relay text NOT NULL,
    lane integer NOT NULL,
    lanes integer NOT NULL,
    owner uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    deaths integer DEFAULT 0 NOT NULL,
    CONSTRAINT lane_check CHECK (((lanes > 0) AND ((lanes & (lanes - 1)) = 0) AND (lane >= 0) AND (lane < lanes)))
)
WITH (fillfactor='50');

CREATE TABLE pgbaton."position" (
    leaf smallint NOT NULL,
    relay text NOT NULL,
    lane integer NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    batch bigint NOT NULL,
    consumed pg_snapshot,
    floor bigint,
    target pg_snapshot,
    ceiling bigint,
    last bigint,
    l bigint,
    x xid8,
    set_back boolean DEFAULT false NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT position_check CHECK (((target IS NULL) = (ceiling IS NULL))),
    CONSTRAINT position_check1 CHECK ((num_nulls(consumed, floor, last) = ANY (ARRAY[0, 3])))
)
PARTITION BY LIST (leaf);

CREATE VIEW pgbaton.newest AS
 SELECT l.relay,
    l.lane,
    l.lanes,
    l.owner,
    l.epoch AS lane_epoch,
    n.epoch,
    n.seq,
    n.batch,
    n.consumed,
    n.floor,
    n.target,
    n.ceiling,
    n.last,
    n.l,
    n.x,
    n.written_at
   FROM (pgbaton.lane l
     LEFT JOIN LATERAL ( SELECT m.epoch,
            m.seq,
            m.batch,
            m.consumed,
            m.floor,
            m.target,
            m.ceiling,
            m.last,
            m.l,
            m.x,
            m.written_at
           FROM (( VALUES (0), (1)) f(leaf)
             CROSS JOIN LATERAL ( SELECT p.leaf,
                    p.relay,
                    p.lane,
                    p.epoch,
                    p.seq,
                    p.batch,
                    p.consumed,
                    p.floor,
                    p.target,
                    p.ceiling,
                    p.last,
                    p.l,
                    p.x,
                    p.set_back,
                    p.written_at
                   FROM pgbaton."position" p
                  WHERE ((p.leaf = f.leaf) AND (p.relay = l.relay) AND (p.lane = l.lane))
                  ORDER BY p.epoch DESC, p.seq DESC
                 LIMIT 1) m)
          ORDER BY m.epoch DESC, m.seq DESC
         LIMIT 1) n ON (true));

CREATE TABLE pgbaton.relay (
    name text NOT NULL,
    lanes integer NOT NULL,
    registration uuid DEFAULT gen_random_uuid() NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL,
    registered_by xid8 DEFAULT pg_current_xact_id() NOT NULL,
    adopted oid,
    definition jsonb,
    changes bigint DEFAULT 0 NOT NULL,
    CONSTRAINT relay_check CHECK (((adopted IS NULL) = (definition IS NULL))),
    CONSTRAINT relay_lanes_check CHECK (((lanes > 0) AND ((lanes & (lanes - 1)) = 0)))
)
WITH (fillfactor='50');

CREATE VIEW pgbaton.in_outbox AS
 SELECT n.relay,
    n.lane,
    n.lanes,
    n.owner,
    n.lane_epoch,
    n.epoch,
    n.seq,
    n.batch,
    n.consumed,
    n.floor,
    n.target,
    n.ceiling,
    n.last,
    n.l,
    n.x,
    n.written_at
   FROM (pgbaton.newest n
     JOIN pgbaton.relay r ON ((r.name = n.relay)))
  WHERE (r.adopted IS NULL);

CREATE TABLE pgbaton.migration (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE pgbaton.outbox_0 (
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    id bigint NOT NULL,
    segment smallint DEFAULT ((((EXTRACT(epoch FROM statement_timestamp()))::bigint / 3600) % (8)::bigint))::smallint NOT NULL,
    size integer GENERATED ALWAYS AS ((LEAST((2147483647)::bigint, (((((octet_length(topic))::bigint + COALESCE(octet_length(key), 0)) + COALESCE(octet_length((headers)::text), 0)) + COALESCE(octet_length(payload), 0)) + COALESCE(octet_length((payload_json)::text), 0))))::integer) STORED NOT NULL,
    topic text NOT NULL,
    key text,
    payload bytea,
    payload_json json,
    headers json,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    deliver_at timestamp with time zone,
    message_id uuid DEFAULT gen_random_uuid() NOT NULL,
    hash bigint GENERATED ALWAYS AS (hashtextextended((COALESCE(key, (message_id)::text) COLLATE "C"), (0)::bigint)) STORED NOT NULL,
    CONSTRAINT outbox_has_two_payloads CHECK ((num_nonnulls(payload, payload_json) <= 1)),
    CONSTRAINT outbox_headers_are_not_an_object CHECK ((json_typeof(headers) = 'object'::text)),
    CONSTRAINT outbox_message_is_larger_than_256_mib CHECK ((size <= 268435456)),
    CONSTRAINT outbox_topic_is_empty CHECK ((topic <> ''::text))
);

ALTER TABLE pgbaton.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME pgbaton.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE pgbaton.parked ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME pgbaton.parked_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE pgbaton.position_0 (
    leaf smallint NOT NULL,
    relay text NOT NULL,
    lane integer NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    batch bigint NOT NULL,
    consumed pg_snapshot,
    floor bigint,
    target pg_snapshot,
    ceiling bigint,
    last bigint,
    l bigint,
    x xid8,
    set_back boolean DEFAULT false NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT position_check CHECK (((target IS NULL) = (ceiling IS NULL))),
    CONSTRAINT position_check1 CHECK ((num_nulls(consumed, floor, last) = ANY (ARRAY[0, 3])))
);

CREATE TABLE pgbaton.position_leaf (
    only_row boolean DEFAULT true NOT NULL,
    leaf smallint NOT NULL,
    CONSTRAINT position_leaf_leaf_check CHECK ((leaf = ANY (ARRAY[0, 1]))),
    CONSTRAINT position_leaf_only_row_check CHECK (only_row)
)
WITH (fillfactor='20');

CREATE TABLE pgbaton.replica (
    id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    relays text[] NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    ttl_ms bigint NOT NULL,
    beat bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='20');

CREATE TABLE pgbaton.segment (
    segment smallint NOT NULL,
    emptied_at timestamp with time zone,
    emptied_by xid8,
    emptied_least xid8,
    emptied_xid xid8,
    emptied_id bigint
);

ALTER TABLE ONLY pgbaton.outbox ATTACH PARTITION pgbaton.outbox_0 FOR VALUES IN ('0');

ALTER TABLE ONLY pgbaton."position" ATTACH PARTITION pgbaton.position_0 FOR VALUES IN ('0');

ALTER TABLE ONLY pgbaton.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (number);

ALTER TABLE ONLY pgbaton.home
    ADD CONSTRAINT home_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (relay, lane);

ALTER TABLE ONLY pgbaton.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY pgbaton.parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (relay, id);

ALTER TABLE ONLY pgbaton.pause
    ADD CONSTRAINT pause_relay_lane_key_topic_key UNIQUE NULLS NOT DISTINCT (relay, lane, key, topic);

ALTER TABLE ONLY pgbaton.position_leaf
    ADD CONSTRAINT position_leaf_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY pgbaton.relay
    ADD CONSTRAINT relay_adopted_key UNIQUE (adopted);

ALTER TABLE ONLY pgbaton.relay
    ADD CONSTRAINT relay_pkey PRIMARY KEY (name);

ALTER TABLE ONLY pgbaton.replica
    ADD CONSTRAINT replica_pkey PRIMARY KEY (id);

ALTER TABLE ONLY pgbaton.ring
    ADD CONSTRAINT ring_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY pgbaton.segment
    ADD CONSTRAINT segment_pkey PRIMARY KEY (segment);

CREATE INDEX outbox_id ON ONLY pgbaton.outbox USING btree (id);

CREATE INDEX outbox_0_id_idx ON pgbaton.outbox_0 USING btree (id);

CREATE INDEX outbox_xid_id ON ONLY pgbaton.outbox USING btree (xid, id);

CREATE INDEX outbox_0_xid_id_idx ON pgbaton.outbox_0 USING btree (xid, id);

CREATE INDEX parked_dead ON pgbaton.parked USING btree (relay, dead_at) WHERE (dead_at IS NOT NULL);

CREATE INDEX parked_due ON pgbaton.parked USING btree (relay, next_at) INCLUDE (hash) WHERE (next_at IS NOT NULL);

CREATE UNIQUE INDEX parked_head ON pgbaton.parked USING btree (relay, hash) WHERE (next_at IS NOT NULL);

CREATE INDEX parked_key ON pgbaton.parked USING btree (relay, hash, number) WHERE holds;

CREATE INDEX parked_lane ON pgbaton.parked USING btree (relay, ((hash & (4095)::bigint))) WHERE holds;

CREATE INDEX parked_old ON pgbaton.parked USING btree (relay, dead_at) WHERE ((dead_at IS NOT NULL) AND (NOT holds));

CREATE INDEX parked_row ON pgbaton.parked USING btree (relay, row_hash) WHERE (row_id IS NOT NULL);

CREATE INDEX parked_trying ON pgbaton.parked USING btree (trying) WHERE (trying IS NOT NULL);

CREATE INDEX parked_written ON pgbaton.parked USING btree (relay, GREATEST(parked_at, last_at)) WHERE (next_at IS NOT NULL);

CREATE UNIQUE INDEX position_newest ON ONLY pgbaton."position" USING btree (leaf, relay, lane, epoch DESC, seq DESC);

CREATE UNIQUE INDEX position_0_leaf_relay_lane_epoch_seq_idx ON pgbaton.position_0 USING btree (leaf, relay, lane, epoch DESC, seq DESC);

ALTER INDEX pgbaton.outbox_id ATTACH PARTITION pgbaton.outbox_0_id_idx;

ALTER INDEX pgbaton.outbox_xid_id ATTACH PARTITION pgbaton.outbox_0_xid_id_idx;

ALTER INDEX pgbaton.position_newest ATTACH PARTITION pgbaton.position_0_leaf_relay_lane_epoch_seq_idx;

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_owner_fkey FOREIGN KEY (owner) REFERENCES pgbaton.replica(id) ON DELETE SET NULL;

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_relay_fkey FOREIGN KEY (relay) REFERENCES pgbaton.relay(name);

ALTER TABLE ONLY pgbaton.pause
    ADD CONSTRAINT pause_relay_fkey FOREIGN KEY (relay) REFERENCES pgbaton.relay(name) ON DELETE CASCADE;

-- leaf pgbaton.outbox_0 FOR VALUES IN ('0')
-- leaf pgbaton.outbox_1 FOR VALUES IN ('1')
-- leaf pgbaton.outbox_2 FOR VALUES IN ('2')
-- leaf pgbaton.outbox_3 FOR VALUES IN ('3')
-- leaf pgbaton.outbox_4 FOR VALUES IN ('4')
-- leaf pgbaton.outbox_5 FOR VALUES IN ('5')
-- leaf pgbaton.outbox_6 FOR VALUES IN ('6')
-- leaf pgbaton.outbox_7 FOR VALUES IN ('7')
-- leaf pgbaton.position_0 FOR VALUES IN ('0')
-- leaf pgbaton.position_1 FOR VALUES IN ('1')
