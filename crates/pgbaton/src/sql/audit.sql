-- What operators have done, the newest first. Parameters: $1 the relay (null: all), $2 how many. Rows: one each. Locks: none.
select pgbaton.utc(a.at) as at, a.who, a.address::text as address, a.what, a.relay, a.details::text as details, a.messages
from pgbaton.audit a where $1::text is null or a.relay = $1::text order by a.number desc limit $2::bigint
