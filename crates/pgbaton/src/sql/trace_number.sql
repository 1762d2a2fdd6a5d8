-- What is known of a message of the outbox, without what it says, by its number. When it was committed is told only where the server
-- keeps such times, and it has forgotten neither the transaction nor, after a restore, is of another cluster than the row.
-- Parameters: $1 its number.
-- Rows: one, with times as texts in UTC; none if there is no such message, or none that others see. Locks: none.
-- Relies on: the index on id, once in each segment; as in `message`.
select o.id, o.message_id::text as message_id, o.hash, o.xid::text as xid, o.topic, o.key, o.size, o.segment,
       pgbaton.utc(o.created_at) as created_at,
       case when pg_catalog.current_setting('track_commit_timestamp') = 'on'
                 and o.xid < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) then
         case when pg_catalog.pg_xact_status(o.xid) = 'committed' then pgbaton.utc(pg_catalog.pg_xact_commit_timestamp(o.xid::xid)) end
       end as committed_at,
       pg_catalog.current_setting('track_commit_timestamp') = 'on' as keeps_times
from pgbaton.outbox o where o.id >= $1::bigint and o.id <= $1::bigint order by o.id
