-- A whole ttl has passed since this replica first saw this timeline: leases from the state that was lost are over.
-- Parameters: $1 the timeline. Rows: none. Locks: the only row.
update pgbaton.home set timeline = $1::integer where timeline < $1::integer
