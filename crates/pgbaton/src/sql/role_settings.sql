-- Settings that were made for roles or for this database and that matter to what is inserted.
-- Rows: one each; the role is null where it is for all. Locks: none.
select r.rolname::text as role, x.setting
from pg_catalog.pg_db_role_setting s left join pg_catalog.pg_roles r on r.oid = s.setrole, pg_catalog.unnest(s.setconfig) as x(setting)
where s.setdatabase in (0, (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()))
  and x.setting like 'synchronous_commit=%'
order by 1, 2
