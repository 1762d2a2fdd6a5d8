-- Whether something was emptied since the relay was registered that this position has not passed: it was set back too far.
-- A transaction that S or T saw running may have been in the segment if its id lies between the least and the greatest.
-- Parameters: $1 the relay, $2 S, $3 T (null: none), $4 last. Rows: one. Locks: none.
select exists (
  select from pgbaton.segment s, pgbaton.relay r
  where r.name = $1::text and s.emptied_by > r.registered_by
    and not ((s.emptied_xid < pg_catalog.pg_snapshot_xmax($2::text::pg_snapshot)
              and not exists (select from pg_catalog.pg_snapshot_xip($2::text::pg_snapshot) x(xid)
                              where x.xid between s.emptied_least and s.emptied_xid))
             or ($3::text is not null and s.emptied_id <= $4::bigint
                 and s.emptied_xid < pg_catalog.pg_snapshot_xmax($3::text::pg_snapshot)
                 and not exists (select from pg_catalog.pg_snapshot_xip($3::text::pg_snapshot) x(xid)
                                 where x.xid between s.emptied_least and s.emptied_xid)))) as lacks
