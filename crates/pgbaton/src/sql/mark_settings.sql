-- What a mark needs besides what every transaction sets: a locked row is not waited for long, since other lanes wait behind,
-- and a row that a policy hides is an error.
-- Rows: one. Locks: none.
select pg_catalog.set_config('lock_timeout', '250ms', true), pg_catalog.set_config('row_security', 'off', true)
