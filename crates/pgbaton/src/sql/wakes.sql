-- Whether inserts into the outbox notify replicas that listen. Rows: one. Locks: none.
select exists (
  select from pg_catalog.pg_trigger t
  where t.tgrelid = 'pgbaton.outbox'::regclass and t.tgname = 'outbox_wake' and t.tgenabled <> 'D') as wakes
