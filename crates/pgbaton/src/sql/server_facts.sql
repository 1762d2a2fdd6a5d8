-- Which server answers, how it is set, and what its clock says. Settings are those that this role's sessions begin with.
-- Rows: one. Locks: none. Works also in recovery, and needs no right.
select pg_catalog.current_setting('server_version_num')::integer as version,
       pg_catalog.pg_is_in_recovery() as in_recovery,
       c.system_identifier::text || ' ' || pg_catalog.pg_postmaster_start_time()::text as life,
       pg_catalog.pg_encoding_to_char(d.encoding)::text as encoding,
       pg_catalog.pg_backend_pid() as backend,
       extract(epoch from pg_catalog.clock_timestamp())::float8 as clock,
       (select pg_catalog.json_object_agg(s.name, s.reset_val)::text from pg_catalog.pg_settings s
         where s.name in ('autovacuum', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync', 'full_page_writes',
                          'idle_in_transaction_session_timeout', 'idle_session_timeout', 'statement_timeout', 'synchronous_commit',
                          'transaction_timeout')) as settings
from pg_catalog.pg_control_system() c, pg_catalog.pg_database d where d.datname = pg_catalog.current_database()
