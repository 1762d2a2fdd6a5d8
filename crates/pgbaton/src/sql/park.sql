-- Sets messages of the outbox aside, each once. A later statement of the transaction that writes the position which passes them,
-- so the lane is ours, and nobody takes it before the commit.
-- Parameters: $1 the relay, $2 the replica, $3 their numbers, in order; what came of an attempt, null for one that waits behind
-- another one of its key: $4 the code, $5 the text, $6 whether it counts, $7 milliseconds until the next one (null: it is dead),
-- $8 whether later ones of its key wait behind it once it is dead. And for each, $9 whether it may have killed its lane's owners.
-- Rows: how many of them are set aside now. Locks: none beyond those of an insert. Relies on: the index on id.
with aside as materialized (
  select o.*, m.n, m.code, m.text, m.counts, m.after, m.holds, m.suspect,
         pg_catalog.count(*) filter (where m.code is null or m.after is not null or m.holds)
           over (partition by o.hash order by m.n) as nth
  from pg_catalog.unnest($3::bigint[]) with ordinality as i(number, n)
    join (select * from rows from (pg_catalog.unnest($4::text[]), pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::boolean[]),
              pg_catalog.unnest($7::bigint[]), pg_catalog.unnest($8::boolean[]), pg_catalog.unnest($9::boolean[])) with ordinality
            as f(code, text, counts, after, holds, suspect, n)) m using (n)
    cross join lateral (select * from pgbaton.outbox b where b.id >= i.number and b.id <= i.number order by b.id limit 1) o
), written as (
  insert into pgbaton.parked
    (relay, id, hash, xid, log_id, topic, key, headers, payload, payload_json, size, created_at, deliver_at,
     attempts, next_at, first_at, last_at, code, faults, dead_at, holds, suspect)
  select $1::text, a.message_id::text, a.hash, a.xid, a.id, a.topic, a.key, a.headers, a.payload, a.payload_json, a.size, a.created_at, a.deliver_at,
         case when a.counts then 1 else 0 end,
         case when (a.code is null or a.after is not null) and a.nth = 1 and not exists (
              select from pgbaton.parked p where p.relay = $1::text and p.hash = a.hash and p.holds)
            then pgbaton.next_try($1::text, a.key, a.topic,
              greatest(pgbaton.after(a.after), a.deliver_at)) end,
         case when a.counts then pg_catalog.clock_timestamp() end, case when a.counts then pg_catalog.clock_timestamp() end, a.code,
         case when a.code is null then '[]' else pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
           'at', pg_catalog.clock_timestamp(), 'code', a.code, 'text', a.text, 'replica', $2::uuid)) end,
         case when a.code is not null and a.after is null then pg_catalog.clock_timestamp() end,
         a.code is null or a.after is not null or a.holds, a.suspect
  from aside a order by a.n
  on conflict (relay, id) do nothing
  returning 1
)
select (select pg_catalog.count(*) from written)
  + (select pg_catalog.count(*) from aside a join pgbaton.parked p on p.relay = $1::text and p.id = a.message_id::text) as aside
