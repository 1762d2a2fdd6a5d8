//! One server per major version for all tests of a test binary: each test makes a database of its own
//! instead of a server of its own.

use tokio::sync::OnceCell;

use super::{Binaries, Cluster, Options};
use crate::Error;

const OLDEST: u32 = 15;

/// One place for each of the versions 15 to 18. Statics are never dropped: when the process ends, the
/// cluster's guard stops the server (see [`crate::process::Guard`]).
static CLUSTERS: [OnceCell<Cluster>; 4] = [const { OnceCell::const_new() }; 4];

/// The cluster of this major version that the whole process shares, started by the first who asks.
///
/// Tests may use it from many runtimes at once. It cannot be stopped or restarted: that takes a cluster
/// of one's own ([`Cluster::start`]), since other tests are using this one.
pub async fn shared(major: u32) -> Result<&'static Cluster, Error> {
    let place = major.checked_sub(OLDEST).and_then(|offset| CLUSTERS.get(usize::try_from(offset).ok()?));
    let Some(cell) = place else {
        return Err(Error::new(format!("PostgreSQL {major} is not supported")));
    };
    cell.get_or_try_init(|| async { Cluster::start(&Binaries::find(major)?, Options::default()).await }).await
}
