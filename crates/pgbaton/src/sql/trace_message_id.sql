-- The numbers of the messages of one segment that have this message id. No index knows: all of it is read, as `trace_settings` allows.
-- (The limit inside is not of an order, so that nothing but the segment itself gives the rows.)
-- Parameters: $1 the segment, $2 the message id. Rows: the numbers, the newest first; mostly one at most. Locks: none.
select m.id from (
  select o.id from pgbaton.outbox o where o.segment = $1::smallint and o.message_id = $2::uuid limit 1000
) m order by m.id desc limit 10
