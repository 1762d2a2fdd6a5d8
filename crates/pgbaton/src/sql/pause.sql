-- Pauses all of a relay, a lane, a key or topics. A new statement after `lanes_lock`: no message is set aside meanwhile.
-- Parameters: $1 the relay, and at most one of $2 the lane, $3 the key, $4 the topics. Rows: one; none if it is paused already.
-- Locks: the relay's row against removal.
insert into pgbaton.pause (relay, lane, key, topic) values ($1::text, $2::integer, $3::text, $4::text)
on conflict do nothing returning relay
