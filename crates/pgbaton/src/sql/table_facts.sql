-- What the catalogue says of a table that is to be adopted, or is.
-- Parameters: $1 its schema, $2 its name. Rows: one with a JSON object; none if there is no such relation. Locks: none.
-- `kind` of a column is its type's own name, under all domains. A unique index counts if it holds for every row at every
-- moment, and by the columns' own collations: by another one its two ids could be one to them. An unpublished change is one that
-- logical replication refuses for want of a replica identity. Rows are rewritten by triggers for each row before an update (1 for
-- each row, 2 before, 16 update).
select pg_catalog.json_build_object(
  'oid', c.oid::bigint, 'version', pg_catalog.current_setting('server_version_num')::integer, 'kind', c.relkind, 'persistence', c.relpersistence,
  'row_security', pg_catalog.row_security_active(c.oid),
  'parts', (select pg_catalog.count(*) from pg_catalog.pg_inherits i where i.inhparent = c.oid),
  'is_part', exists (select from pg_catalog.pg_inherits i where i.inhrelid = c.oid),
  'columns', (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
      'name', a.attname, 'type_name', pg_catalog.format_type(a.atttypid, a.atttypmod), 'kind', (
        with recursive under as (
          select y.oid, y.typname, y.typtype, y.typbasetype from pg_catalog.pg_type y where y.oid = a.atttypid
          union all
          select y.oid, y.typname, y.typtype, y.typbasetype from under u
            join pg_catalog.pg_type y on u.typtype = 'd' and y.oid = u.typbasetype
        ) select case typtype when 'e' then 'enum' else typname::text end from under where typtype <> 'd'),
      'not_null', a.attnotnull, 'generated', a.attgenerated <> '' or a.attidentity = 'a', 'computed', a.attgenerated <> '',
      'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid)) order by a.attnum), '[]')
    from pg_catalog.pg_attribute a
      left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'unique', (
    select coalesce(pg_catalog.json_agg((
      select pg_catalog.json_agg(a.attname order by a.attname)
      from pg_catalog.unnest(x.indkey::smallint[]) with ordinality k(attnum, n)
        join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
      where k.n <= x.indnkeyatts)), '[]')
    from pg_catalog.pg_index x
    where x.indrelid = c.oid and x.indisunique and x.indisvalid and x.indimmediate and x.indpred is null
      and x.indexprs is null and not exists (
        select from unnest(x.indkey::smallint[], x.indcollation::oid[]) with ordinality k(attnum, collation_, n)
          join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
        where k.n <= x.indnkeyatts and k.collation_ <> a.attcollation)),
  'rules', (
    select coalesce(pg_catalog.json_agg(r.rulename), '[]') from pg_catalog.pg_rewrite r
    where r.ev_class = c.oid and r.ev_type in ('2', '4')),
  'rewritten', exists (
    select from pg_catalog.pg_trigger t
    where (t.tgrelid = c.oid or t.tgrelid in (select p.relid from pg_catalog.pg_partition_tree(c.oid) p))
      and not t.tgisinternal and t.tgenabled <> 'D' and t.tgtype & 19 = 19),
  'referenced', (
    select coalesce(pg_catalog.json_agg(f.conrelid::regclass::text), '[]') from pg_catalog.pg_constraint f
    where f.confrelid = c.oid and f.contype = 'f' and f.confdeltype not in ('c', 'n', 'd')),
  'unpublished', c.relreplident <> 'f'
    and not exists (select from pg_catalog.pg_index x where x.indrelid = c.oid
                    and case c.relreplident when 'd' then x.indisprimary when 'i' then x.indisreplident else false end)
    and exists (select from pg_catalog.pg_publication_tables t join pg_catalog.pg_publication p on p.pubname = t.pubname
                where t.schemaname = n.nspname and t.tablename = c.relname and (p.pubupdate or p.pubdelete))
)::text as facts
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relname = $2::text
