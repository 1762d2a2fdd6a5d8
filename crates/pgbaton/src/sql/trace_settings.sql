-- For statements that no index serves: they read what they have to from its beginning, and end when their time is over.
-- Parameters: $1 milliseconds that each of the following statements may take, as a text. Rows: one. Locks: none.
select pg_catalog.set_config('enable_seqscan', 'on', true), pg_catalog.set_config('enable_partition_pruning', 'on', true),
       pg_catalog.set_config('statement_timeout', $1::text, true)
