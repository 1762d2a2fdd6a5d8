-- Dead messages are given up. Of an adopted table the row is pending even so: it stays here, that no look finds it, until somebody
-- marks or deletes it; but its key goes past it.
-- Parameters: $1 the relay, $2 their ids. Rows: one for each that was dead, with the key's hash. Locks: their rows.
with gone as (
  delete from pgbaton.parked p
  where p.relay = $1::text and p.id = any($2::text[]) and p.dead_at is not null and p.row_id is null returning p.hash
), passed as (
  update pgbaton.parked p set holds = false, given_up = true
  where p.relay = $1::text and p.id = any($2::text[]) and p.dead_at is not null and p.row_id is not null and not p.given_up returning p.hash
)
select hash from gone union all select hash from passed
