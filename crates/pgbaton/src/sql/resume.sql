-- Ends pauses. A new statement after `lanes_lock`.
-- Parameters: $1 the relay, $2 the lane, $3 the key, $4 the topics, of which none means the pause of all of the relay; $5 all its
-- pauses, whatever they are of. Rows: one for each. Locks: their rows.
delete from pgbaton.pause p
where p.relay = $1::text and ($5::boolean or (p.lane is not distinct from $2::integer and p.key is not distinct from $3::text
  and p.topic is not distinct from $4::text))
returning p.relay
