-- Who still needs a segment, or why it is kept. Parameters: $1 the segment. Rows: one, null if nobody does. Locks: none.
select pgbaton.needs($1::smallint) as why
