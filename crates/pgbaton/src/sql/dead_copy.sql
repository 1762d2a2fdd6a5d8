-- Messages of the outbox that are dead are copied into it, each once, under another topic. A later statement of the transaction in which
-- they die. Parameters: $1 the relay, $2 their ids, $3 the topic. Rows: one. Locks: their rows.
select pgbaton.copy_dead($1::text, $2::text[], $3::text)
