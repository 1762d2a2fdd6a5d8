-- Takes all positions back to what is certain. In a transaction of its own; only the schema's owner may.
-- Parameters: $1 a timeline given up for this server's (0: none). Rows: one. Locks: the outbox, against inserts.
select messages, due from pgbaton.rebase($1::integer)
