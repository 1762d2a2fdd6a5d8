-- Sets rows of an adopted table aside, each once; their content stays where it is. A later statement of the transaction that marks
-- what was delivered before them, so the lane is ours, and nobody takes it before the commit.
-- Parameters: $1 the relay, $2 the replica; of the rows, in order: $3 the message ids, $4 the hashes, $5 the rows' ids as texts of
-- arrays, $6 topics, $7 keys, $8 sizes, $9 when they were inserted, in microseconds; and $10 to $15 what came of an attempt, as in
-- `park`.
-- Rows: none. Locks: none beyond those of an insert.
insert into pgbaton.parked
  (relay, id, hash, row_id, topic, key, size, created_at, attempts, next_at, first_at, last_at, code, faults, dead_at, holds, suspect)
select $1::text, a.id, a.hash, a.row_id::text[], a.topic, a.key, a.size,
       'epoch'::timestamptz + a.created * interval '1 microsecond',
       case when a.counts then 1 else 0 end,
       case when (a.code is null or a.after is not null) and a.nth = 1 and not exists (
              select from pgbaton.parked p where p.relay = $1::text and p.hash = a.hash and p.holds)
            then pgbaton.next_try($1::text, a.key, a.topic,
              pgbaton.after(a.after)) end,
       case when a.counts then pg_catalog.clock_timestamp() end, case when a.counts then pg_catalog.clock_timestamp() end, a.code,
       case when a.code is null then '[]' else pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
         'at', pg_catalog.clock_timestamp(), 'code', a.code, 'text', a.text, 'replica', $2::uuid)) end,
       case when a.code is not null and a.after is null then pg_catalog.clock_timestamp() end,
       a.code is null or a.after is not null or a.holds, a.suspect
from (
  select r.*, pg_catalog.count(*) filter (where r.code is null or r.after is not null or r.holds)
           over (partition by r.hash order by r.n) as nth
  from rows from (
    pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::bigint[]), pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::text[]),
    pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::integer[]), pg_catalog.unnest($9::bigint[]), pg_catalog.unnest($10::text[]),
    pg_catalog.unnest($11::text[]), pg_catalog.unnest($12::boolean[]), pg_catalog.unnest($13::bigint[]), pg_catalog.unnest($14::boolean[]),
    pg_catalog.unnest($15::boolean[])
  ) with ordinality as r(id, hash, row_id, topic, key, size, created, code, text, counts, after, holds, suspect, n)
) a
order by a.n
on conflict (relay, id) do nothing
