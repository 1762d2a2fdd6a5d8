grant usage on schema pgbaton to {relay};
grant execute on function pgbaton.incarnation(), pgbaton.segments_above(bigint), pgbaton.segment_at(timestamptz),
  pgbaton.lane_lock(text, integer), pgbaton.relays_lock(), pgbaton.needs(smallint), pgbaton.empty_segment(smallint),
  pgbaton.utc(timestamptz), pgbaton.next_try(text, text, text, timestamptz), pgbaton.after(bigint),
  pgbaton.copy_dead(text, text[], text),
  pgbaton.with_headers(json, jsonb) to {relay};
grant select on all tables in schema pgbaton to {relay};
grant select on all sequences in schema pgbaton to {relay};
grant insert on pgbaton.relay, pgbaton.lane, pgbaton.replica, pgbaton.position to {relay};
grant insert (what, relay, details, messages) on pgbaton.audit to {relay};
grant insert, update, delete on pgbaton.parked to {relay};
grant insert (relay, lane, key, topic), delete on pgbaton.pause to {relay};
grant update (lanes, changes) on pgbaton.relay to {relay};
grant update (owner, epoch, lanes, deaths) on pgbaton.lane to {relay};
grant update (beat, relays), delete on pgbaton.replica to {relay};
grant update (timeline) on pgbaton.home to {relay};
grant update (leaf) on pgbaton.position_leaf to {relay};
grant truncate on pgbaton.position_0, pgbaton.position_1 to {relay};
