-- What a mark needs besides what every transaction sets: a locked row is not waited for long, since other lanes wait behind, and
-- each row is found by its id, whatever the statistics say.
-- Rows: one. Locks: none.
select pg_catalog.set_config('lock_timeout', '50ms', true),
  pg_catalog.set_config('enable_bitmapscan', 'off', true), pg_catalog.set_config('enable_hashjoin', 'off', true),
  pg_catalog.set_config('enable_mergejoin', 'off', true), pg_catalog.set_config('enable_material', 'off', true),
  pg_catalog.set_config('enable_memoize', 'off', true), pg_catalog.set_config('random_page_cost', '1', true)
