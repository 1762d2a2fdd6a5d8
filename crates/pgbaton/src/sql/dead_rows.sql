-- Dead rows of an adopted table. Parameters: $1 the relay, $2 those above this number, $3 how many.
-- Rows: the number, the message id, and the row's id. Locks: none.
select p.number, p.id, p.row_id from pgbaton.parked p
where p.relay = $1::text and p.dead_at is not null and p.row_id is not null and p.number > $2::bigint
order by p.number limit $3::bigint
