-- The schema after all migrations, as pg_dump shows it, with one leaf of each table for all.
-- Written by a test: PGBATON_BLESS=1.

CREATE SCHEMA pgbaton;

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

CREATE FUNCTION pgbaton.leaves(above bigint) RETURNS smallint[]
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
    message_id uuid DEFAULT gen_random_uuid() NOT NULL,
    hash bigint GENERATED ALWAYS AS (hashtextextended((COALESCE(key, (message_id)::text) COLLATE "C"), (0)::bigint)) STORED NOT NULL,
    CONSTRAINT outbox_has_two_payloads CHECK ((num_nonnulls(payload, payload_json) <= 1)),
    CONSTRAINT outbox_headers_are_not_an_object CHECK ((json_typeof(headers) = 'object'::text)),
    CONSTRAINT outbox_message_is_larger_than_256_mib CHECK ((size <= 268435456)),
    CONSTRAINT outbox_topic_is_empty CHECK ((topic <> ''::text))
)
PARTITION BY LIST (segment);

CREATE FUNCTION pgbaton.send(topic text, payload bytea, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid()) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload, headers, message_id)
   VALUES (send.topic, send.key, send.payload, send.headers, send.message_id)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload json, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid()) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload_json, headers, message_id)
   VALUES (send.topic, send.key, send.payload, send.headers, send.message_id)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload jsonb, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid()) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload_json, headers, message_id)
   VALUES (send.topic, send.key, (send.payload)::json, send.headers, send.message_id)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.send(topic text, payload text, key text DEFAULT NULL::text, headers json DEFAULT NULL::json, message_id uuid DEFAULT gen_random_uuid()) RETURNS bigint
    LANGUAGE sql
    BEGIN ATOMIC
 INSERT INTO pgbaton.outbox (topic, key, payload, headers, message_id)
   VALUES (send.topic, send.key, convert_to(send.payload, 'UTF8'::name), send.headers, send.message_id)
   RETURNING outbox.id;
END;

CREATE FUNCTION pgbaton.wake() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$ begin perform pg_catalog.pg_notify('pgbaton', ''); return null; end $$;

CREATE TABLE pgbaton.home (
    only_row boolean DEFAULT true NOT NULL,
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    timeline integer NOT NULL,
    CONSTRAINT home_only_row_check CHECK (only_row)
);

CREATE TABLE pgbaton.lane (
    relay text NOT NULL,
    lane integer NOT NULL,
    lanes integer NOT NULL,
    owner uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    CONSTRAINT lane_check CHECK (((lanes > 0) AND ((lanes & (lanes - 1)) = 0) AND (lane >= 0) AND (lane < lanes)))
)
WITH (fillfactor='50');

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

CREATE TABLE pgbaton."position" (
    leaf smallint NOT NULL,
    relay text NOT NULL,
    lane integer NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    batch bigint NOT NULL,
    consumed pg_snapshot NOT NULL,
    floor bigint NOT NULL,
    target pg_snapshot,
    ceiling bigint,
    last bigint NOT NULL,
    l bigint,
    x xid8,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT position_check CHECK (((target IS NULL) = (ceiling IS NULL)))
)
PARTITION BY LIST (leaf);

CREATE TABLE pgbaton.position_0 (
    leaf smallint NOT NULL,
    relay text NOT NULL,
    lane integer NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    batch bigint NOT NULL,
    consumed pg_snapshot NOT NULL,
    floor bigint NOT NULL,
    target pg_snapshot,
    ceiling bigint,
    last bigint NOT NULL,
    l bigint,
    x xid8,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT position_check CHECK (((target IS NULL) = (ceiling IS NULL)))
);

CREATE TABLE pgbaton.position_leaf (
    only_row boolean DEFAULT true NOT NULL,
    leaf smallint NOT NULL,
    CONSTRAINT position_leaf_leaf_check CHECK ((leaf = ANY (ARRAY[0, 1]))),
    CONSTRAINT position_leaf_only_row_check CHECK (only_row)
)
WITH (fillfactor='20');

CREATE TABLE pgbaton.relay (
    name text NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL
);

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

ALTER TABLE ONLY pgbaton.outbox ATTACH PARTITION pgbaton.outbox_0 FOR VALUES IN ('0');

ALTER TABLE ONLY pgbaton."position" ATTACH PARTITION pgbaton.position_0 FOR VALUES IN ('0');

ALTER TABLE ONLY pgbaton.home
    ADD CONSTRAINT home_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (relay, lane);

ALTER TABLE ONLY pgbaton.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY pgbaton.position_leaf
    ADD CONSTRAINT position_leaf_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY pgbaton.relay
    ADD CONSTRAINT relay_pkey PRIMARY KEY (name);

ALTER TABLE ONLY pgbaton.replica
    ADD CONSTRAINT replica_pkey PRIMARY KEY (id);

CREATE INDEX outbox_id ON ONLY pgbaton.outbox USING btree (id);

CREATE INDEX outbox_0_id_idx ON pgbaton.outbox_0 USING btree (id);

CREATE INDEX outbox_xid_id ON ONLY pgbaton.outbox USING btree (xid, id);

CREATE INDEX outbox_0_xid_id_idx ON pgbaton.outbox_0 USING btree (xid, id);

CREATE UNIQUE INDEX position_newest ON ONLY pgbaton."position" USING btree (leaf, relay, lane, epoch DESC, seq DESC);

CREATE UNIQUE INDEX position_0_leaf_relay_lane_epoch_seq_idx ON pgbaton.position_0 USING btree (leaf, relay, lane, epoch DESC, seq DESC);

ALTER INDEX pgbaton.outbox_id ATTACH PARTITION pgbaton.outbox_0_id_idx;

ALTER INDEX pgbaton.outbox_xid_id ATTACH PARTITION pgbaton.outbox_0_xid_id_idx;

ALTER INDEX pgbaton.position_newest ATTACH PARTITION pgbaton.position_0_leaf_relay_lane_epoch_seq_idx;

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_owner_fkey FOREIGN KEY (owner) REFERENCES pgbaton.replica(id) ON DELETE SET NULL;

ALTER TABLE ONLY pgbaton.lane
    ADD CONSTRAINT lane_relay_fkey FOREIGN KEY (relay) REFERENCES pgbaton.relay(name);

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
