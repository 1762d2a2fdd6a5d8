-- Empties a segment if nobody needs it. Parameters: $1 the segment. Rows: one, null if it was emptied, else why not.
-- Locks: the segment, exclusively, for the truncate; waits 50 ms at most for it.
select pgbaton.empty_segment($1::smallint) as why
