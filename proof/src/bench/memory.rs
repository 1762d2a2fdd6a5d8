//! The most memory that a replica has resident while it drains 1,000,000 messages.

use super::covered::Last;
use super::drain::drain;
use super::figures::{Figures, Goal, percentile};
use super::site::Site;
use super::{Args, messages};
use crate::Error;

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let waiting = args.messages(1_000_000, 20_000);
    figures.doing(&format!("memory: {waiting} messages"));
    messages::write(&site, waiting).await?;
    let last = Last::find(&site.admin).await?;
    let mut most = Vec::new();
    for round in 0..args.rounds(3) {
        most.push(drain(&site, &format!("memory{round}"), &last, 1).await?.most_resident / f64::from(1 << 20));
    }
    figures.judge("memory_resident_mib", percentile(&most, 1.0), "MiB at most", Goal::AtMost(32.0));
    Ok(())
}
