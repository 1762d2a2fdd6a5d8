-- The id at which a window of $3 rows ends; no row if there are fewer. Same snapshot as `window`.
-- Parameters: $1 after, $2 up to, $3 how many rows, $4 the segments (null: all). Rows: one or none. Locks: none.
-- Relies on: the index on id.
select id from pgbaton.outbox
where id > $1::bigint and id <= $2::bigint and ($4::smallint[] is null or segment = any($4::smallint[]))
order by id offset $3::bigint - 1 limit 1
