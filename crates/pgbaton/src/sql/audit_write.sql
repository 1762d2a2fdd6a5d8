-- Writes down what an operator does, in the same transaction. Parameters: $1 what, $2 the relay (null: none), $3 how it was asked for,
-- as JSON, $4 how many messages it is about (null: that is not known). Rows: one, with its number.
-- Locks: none.
insert into pgbaton.audit (what, relay, details, messages) values ($1::text, $2::text, $3::text::jsonb, $4::bigint)
returning number
