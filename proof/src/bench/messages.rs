//! The messages that wait: 200 bytes of JSON each, a thousand keys, written by a producer in several transactions.

use super::site::Site;
use crate::Error;

/// Rows of one transaction.
const CHUNK: u32 = 50_000;

/// One message each for n from $1 to $2. The payload is 200 bytes long.
const INSERT: &str = r#"
insert into pgbaton.outbox (topic, key, payload_json)
select 'orders', 'customer-' || (n::bigint * 7919 % 1000),
       (rpad('{"order": ' || n || ', "state": "paid", "note": "', 198, 'lorem ipsum dolor ') || '"}')::json
from generate_series($1::integer, $2::integer) n"#;

/// Writes so many messages, and makes their pages as they are some time after: with hint bits, and with statistics.
///
/// The first reader of a fresh row sets its hint bits, whoever it is; that is not the relay's doing, and would fall on
/// the first of those who are compared.
pub(super) async fn write(site: &Site, count: u32) -> Result<(), Error> {
    let producer = site.fixture.producer().await?;
    let (mut from, count) = (1, i64::from(count));
    while from <= count {
        let upto = count.min(from + i64::from(CHUNK) - 1);
        let (first, last) = (i32::try_from(from).unwrap_or(i32::MAX), i32::try_from(upto).unwrap_or(i32::MAX));
        producer.execute(INSERT, &[&first, &last]).await.map_err(|cause| Error::because("writing messages", &cause))?;
        from = upto + 1;
    }
    site.execute("vacuum (analyze) pgbaton.outbox").await
}
