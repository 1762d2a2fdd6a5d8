-- Memory for the hashes of rows that are set aside: the planner puts them there only if all of them might fit.
-- Rows: one. Locks: none.
select pg_catalog.set_config('work_mem', '128MB', true)
