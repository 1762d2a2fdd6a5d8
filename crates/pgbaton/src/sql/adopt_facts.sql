-- What else the catalogue and the statistics say of a table that may be adopted: for `pgbaton adopt` alone, which looks before
-- there is a schema `pgbaton`.
-- Parameters: $1 its schema, $2 its name. Rows: one with a JSON object; none if there is no such relation. Locks: none.
-- `common` gives frequent values of columns that may say what became of a row, where the statistics have them, and of no other.
select pg_catalog.json_build_object(
  'primary_key', (
    select coalesce(pg_catalog.json_agg(a.attname order by k.n), '[]')
    from pg_catalog.pg_index x cross join lateral pg_catalog.unnest(x.indkey::smallint[]) with ordinality k(attnum, n)
      join pg_catalog.pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.attnum
    where x.indrelid = c.oid and x.indisprimary and k.n <= x.indnkeyatts),
  'indexes', (
    select coalesce(pg_catalog.json_agg(
      pg_catalog.pg_get_indexdef(x.indexrelid) || case when x.indisvalid then '' else ' (invalid)' end order by x.indexrelid), '[]')
    from pg_catalog.pg_index x where x.indrelid = c.oid),
  'constraints', (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('name', k.conname,
      'definition', pg_catalog.pg_get_constraintdef(k.oid), 'columns', (
        select coalesce(pg_catalog.json_agg(a.attname), '[]') from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum = any(k.conkey))) order by k.conname), '[]')
    from pg_catalog.pg_constraint k where k.conrelid = c.oid and k.contype in ('c', 'f', 'u', 'p', 'x')),
  'triggers', (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('name', t.tgname, 'function', t.tgfoid::regproc::text,
      'on_update', t.tgtype & 16 <> 0, 'on_delete', t.tgtype & 8 <> 0, 'definer', p.prosecdef) order by t.tgname), '[]')
    from pg_catalog.pg_trigger t join pg_catalog.pg_proc p on p.oid = t.tgfoid
    where t.tgrelid = c.oid and not t.tgisinternal and t.tgenabled <> 'D'),
  'quoted', (
    select coalesce(pg_catalog.json_object_agg(a.attname, pg_catalog.quote_ident(a.attname)), '{}')
    from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'sequences', (
    select coalesce(pg_catalog.json_object_agg(a.attname, s.seqcache), '{}')
    from pg_catalog.pg_attribute a
      join pg_catalog.pg_depend d on d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = a.attrelid
        and d.refobjsubid = a.attnum and d.classid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i')
      join pg_catalog.pg_sequence s on s.seqrelid = d.objid
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'labels', (
    select coalesce(pg_catalog.json_object_agg(a.attname, (
      select pg_catalog.json_agg(e.enumlabel order by e.enumsortorder) from pg_catalog.pg_enum e where e.enumtypid = a.atttypid)), '{}')
    from pg_catalog.pg_attribute a join pg_catalog.pg_type y on y.oid = a.atttypid and y.typtype = 'e'
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'common', (
    select coalesce(pg_catalog.json_object_agg(v.attname, v.most_common_vals::text::text[]), '{}')
    from pg_catalog.pg_stats v
    where v.schemaname = n.nspname and v.tablename = c.relname and v.n_distinct between 1 and 20
      and v.most_common_vals is not null and v.attname ~* '(status|state)$'),
  'publications', (
    select coalesce(pg_catalog.json_agg(distinct t.pubname), '[]') from pg_catalog.pg_publication_tables t
    where t.schemaname = n.nspname and t.tablename = c.relname),
  'slots', (
    select coalesce(pg_catalog.json_agg(s.slot_name order by s.slot_name), '[]') from pg_catalog.pg_replication_slots s
    where s.slot_type = 'logical' and s.database = pg_catalog.current_database()),
  'replica_identity', c.relreplident,
  'row_security', c.relrowsecurity,
  'partition_key', (
    select coalesce(pg_catalog.json_agg(a.attname), '[]')
    from pg_catalog.pg_partitioned_table q join pg_catalog.pg_attribute a on a.attrelid = q.partrelid
    where q.partrelid = c.oid and a.attnum = any(q.partattrs::smallint[])),
  'estimate', case when c.relkind = 'p' then (
      select case when pg_catalog.bool_and(l.reltuples >= 0) then pg_catalog.sum(l.reltuples)::bigint end
      from pg_catalog.pg_partition_tree(c.oid) t join pg_catalog.pg_class l on l.oid = t.relid where t.isleaf)
    when c.reltuples >= 0 then c.reltuples::bigint end,
  'inserted', coalesce(u.n_tup_ins, 0), 'deleted', coalesce(u.n_tup_del, 0), 'live', coalesce(u.n_live_tup, 0)
)::text as facts
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_stat_all_tables u on u.relid = c.oid
where n.nspname = $1::text and c.relname = $2::text
