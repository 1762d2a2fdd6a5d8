//! The least that any relay has to do: read the messages in order. A client that streams, borrows and writes nothing.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::Error;

/// Rows of one query. Larger ones were no faster where this was tried.
const BATCH: i64 = 10_000;

const PAGE: &str = "select message_id, topic, key, headers, payload, payload_json, created_at, id
                    from pgbaton.outbox where id > $1 order by id limit $2";

/// Reads all messages; how many, and how long it took.
pub(super) async fn read(client: &Client) -> Result<(usize, Duration), Error> {
    let failed = |cause| Error::because("reading the outbox", &cause);
    let began = Instant::now();
    let (mut last, mut messages, mut bytes) = (0i64, 0, 0);
    loop {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&last, Type::INT8), (&BATCH, Type::INT8)];
        let rows = client.query_typed_raw(PAGE, parameters).await.map_err(failed)?;
        pin_mut!(rows);
        let mut found = 0;
        while let Some(row) = rows.next().await {
            let row = row.map_err(failed)?;
            (last, bytes) = (row.try_get(7).map_err(failed)?, bytes + borrow(&row, 7).map_err(failed)?);
            found += 1;
        }
        messages += found;
        if i64::try_from(found).is_ok_and(|found| found < BATCH) {
            // Used, so that no compiler finds the borrowing superfluous.
            std::hint::black_box(bytes);
            return Ok((messages, began.elapsed()));
        }
    }
}

/// Lends out the first columns of a row as they came; the bytes of all of them.
pub(super) fn borrow(row: &Row, columns: usize) -> Result<usize, tokio_postgres::Error> {
    let mut bytes = 0;
    for column in 0..columns {
        let value: Option<Raw<'_>> = row.try_get(column)?;
        bytes += value.map_or(0, |Raw(value)| value.len());
    }
    Ok(bytes)
}

/// A column's bytes as the server sent them.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
