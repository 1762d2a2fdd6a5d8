//! Which replicas still run: their beats move. Rows of those that died do not, whether they died with another server or here.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::sql;

/// A replica that runs, if there is one: watches for a whole ttl.
pub(super) async fn running(connection: &Connection) -> Result<Option<String>, Error> {
    let (before, after) = watched(connection).await?;
    Ok(after.into_iter().find(|(id, beat)| before.get(id) != Some(beat)).map(|(id, _)| id))
}

/// Removes the rows of replicas that died, as a replica would: watches for a whole ttl.
pub(super) async fn expire_dead(connection: &Connection) -> Result<(), Error> {
    let (before, after) = watched(connection).await?;
    for (id, beat) in after.iter().filter(|(id, beat)| before.get(*id) == Some(beat)) {
        let parameters: [Parameter<'_>; 2] = [(id, Type::TEXT), (beat, Type::INT8)];
        connection.pipeline(Access::Write, [(sql::EXPIRE, &parameters)]).await?;
    }
    Ok(())
}

type Beats = HashMap<String, i64>;

/// All beats, and all beats a ttl later.
async fn watched(connection: &Connection) -> Result<(Beats, Beats), Error> {
    let (before, ttl) = beats(connection).await?;
    if before.is_empty() {
        return Ok((before, Beats::new()));
    }
    tracing::info!(?ttl, "watching for replicas that still run");
    tokio::time::sleep(ttl).await;
    let (after, _) = beats(connection).await?;
    Ok((before, after))
}

/// All beats, and the longest ttl.
pub(super) async fn beats(connection: &Connection) -> Result<(Beats, Duration), Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::REPLICAS, &[])]).await?;
    let (mut beats, mut ttl) = (Beats::new(), Duration::ZERO);
    for row in &rows {
        beats.insert(row.try_get("id")?, row.try_get("beat")?);
        ttl = ttl.max(Duration::from_millis(u64::try_from(row.try_get::<_, i64>("ttl_ms")?).unwrap_or_default()));
    }
    Ok((beats, ttl))
}
