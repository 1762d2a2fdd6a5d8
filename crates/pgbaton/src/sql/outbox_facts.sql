-- What the outbox must be like for the reading to be right. Run once at start.
-- Rows: one with the incarnation, and what the schema is expected to show. Locks: none.
select pgbaton.incarnation() as incarnation,
       pg_catalog.current_setting('server_version_num')::integer as version,
       pg_catalog.pg_encoding_to_char(d.encoding)::text as encoding,
       (select c.system_identifier from pg_catalog.pg_control_system() c) = h.system_identifier as same_system,
       d.oid = h.database and o.oid = h.outbox
         and h.made_by::xid = (select m.xmin from pgbaton.migration m where m.version = 1) as same_table,
       id.attidentity = 'a' as always_generated,
       xid.attnum < id.attnum as xid_first,
       coalesce(pg_catalog.pg_get_expr(x.adbin, x.adrelid) in ('pg_current_xact_id()'), false) as xid_default,
       (select pg_catalog.array_agg(pg_catalog.format('outbox_%s FOR VALUES IN (''%s'')', g.segment, g.segment)
                     order by g.segment)
          from pgbaton.segment g)
         = (select pg_catalog.array_agg(pg_catalog.concat(l.relname, ' ', pg_catalog.pg_get_expr(l.relpartbound, l.oid))
                     order by pg_catalog.substr(l.relname::text, 8)::integer)
            from pg_catalog.pg_inherits i join pg_catalog.pg_class l on l.oid = i.inhrelid
            where i.inhparent = o.oid and l.relnamespace = o.relnamespace and l.relname ~ '^outbox_[0-9]+$')
         and not exists (select from pg_catalog.pg_inherits i join pg_catalog.pg_class l on l.oid = i.inhrelid
            where i.inhparent = o.oid and (l.relnamespace <> o.relnamespace or l.relname !~ '^outbox_[0-9]+$')) as own_segments,
       (select pg_catalog.count(*) = 2 from pg_catalog.pg_index x join pg_catalog.pg_class c on c.oid = x.indexrelid
         where x.indrelid = o.oid and c.relname in ('outbox_id', 'outbox_xid_id') and x.indisvalid and x.indpred is null) as indexes,
       s.seqincrement = 1 and s.seqcache = 1 and not s.seqcycle as plain_sequence,
       o.relrowsecurity or exists (
         select from pg_catalog.pg_inherits i join pg_catalog.pg_class l on l.oid = i.inhrelid
         where i.inhparent = o.oid and l.relrowsecurity) as row_security
from pgbaton.home h
  join pg_catalog.pg_database d on d.datname = pg_catalog.current_database()
  join pg_catalog.pg_class o on o.oid = 'pgbaton.outbox'::regclass
  join pg_catalog.pg_attribute id on id.attrelid = o.oid and id.attname = 'id'
  join pg_catalog.pg_attribute xid on xid.attrelid = o.oid and xid.attname = 'xid'
  left join pg_catalog.pg_attrdef x on x.adrelid = o.oid and x.adnum = xid.attnum
  left join pg_catalog.pg_sequence s on s.seqrelid = 'pgbaton.outbox_id_seq'::regclass
