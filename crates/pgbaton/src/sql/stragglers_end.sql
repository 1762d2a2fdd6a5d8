-- The id at which $3 rows of straggling transactions end; no row if there are fewer. Same snapshot as `stragglers`.
-- Parameters: $1 after, $2 up to, $3 how many rows, $4 the transactions. Rows: one or none. Locks: none.
-- Relies on: the index on (xid, id), by the same comparison.
select m.id
from pg_catalog.unnest($4::text[]::xid8[]) as x(xid) cross join lateral (
  select o.id from pgbaton.outbox o
  where (o.xid, o.id) > (x.xid, $1::bigint) and (o.xid, o.id) <= (x.xid, $2::bigint)
  order by o.xid, o.id limit $3::bigint
) m
order by m.id offset $3::bigint - 1 limit 1
