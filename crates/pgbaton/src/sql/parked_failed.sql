-- Messages that were set aside have failed once more. A later statement of the transaction that writes the position, after
-- `parked_delivered`: one that waited behind what was delivered may have failed itself.
-- Parameters: $1 the relay, $2 the replica, $3 their ids, $4 how many attempts each had, and $5 when it was due then (null: it
-- waited behind another one): said once more, it means nothing; $6 the code, $7 the text, $8 whether it counts, $9 milliseconds
-- until the next one (null: it is dead), $10 whether later ones of its key wait behind it once it is dead, $11 whether it may have
-- killed its lane's owners. Its owner has survived trying it.
-- One is not tried next if an operator has brought back another one of its key meanwhile.
-- Rows: none. Locks: their rows.
update pgbaton.parked p
set attempts = p.attempts + case when f.counts then 1 else 0 end,
    next_at = case when f.after is not null and not exists (
        select from pgbaton.parked h where h.relay = p.relay and h.hash = p.hash and h.next_at is not null and h.id <> p.id)
      then pgbaton.next_try(p.relay, p.key, p.topic, pgbaton.after(f.after)) end,
    first_at = case when f.counts then coalesce(p.first_at, pg_catalog.clock_timestamp()) else p.first_at end,
    last_at = pg_catalog.clock_timestamp(), code = f.code,
    faults = case when pg_catalog.jsonb_array_length(p.faults) >= 10 then p.faults - 0 else p.faults end
      || pg_catalog.jsonb_build_object('at', pg_catalog.clock_timestamp(), 'code', f.code, 'text', f.text, 'replica', $2::uuid),
    dead_at = case when f.after is null then pg_catalog.clock_timestamp() end,
    holds = f.after is not null or f.holds, suspect = p.suspect or f.suspect, trying = null
from rows from (pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::integer[]), pg_catalog.unnest($5::timestamptz[]),
                pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::boolean[]),
                pg_catalog.unnest($9::bigint[]), pg_catalog.unnest($10::boolean[]), pg_catalog.unnest($11::boolean[]))
  as f(id, attempts, due, code, text, counts, after, holds, suspect)
where p.relay = $1::text and p.id = f.id and p.attempts = f.attempts and p.next_at is not distinct from f.due and p.dead_at is null
