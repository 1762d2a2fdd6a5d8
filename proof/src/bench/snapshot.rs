//! The rate while another session holds a snapshot from before the messages were written, so that nothing which died
//! since may be removed. The same for the classic relay, which leaves a dead row for each message.

use super::covered::Last;
use super::drain::drain;
use super::figures::{Figures, Goal, count, median, rate};
use super::site::Site;
use super::{Args, bare, classic, messages};
use crate::Error;

/// Of the classic relay, in messages of one transaction.
const CLASSIC_BATCH: i64 = 2_000;

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let waiting = args.messages(1_000_000, 20_000);
    let (mut kept, mut classic_kept, mut free_rates) = (Vec::new(), Vec::new(), Vec::new());
    let site = Site::open(args).await?;
    for round in 0..args.rounds(3) {
        figures.doing(&format!("snapshot: {waiting} messages, round {round}"));
        site.execute("truncate pgbaton.outbox").await?;
        let holder = site.fixture.admin().await?;
        holder
            .batch_execute("begin isolation level repeatable read; select count(*) from pgbaton.relay")
            .await
            .map_err(|cause| Error::because("taking a snapshot", &cause))?;
        messages::write(&site, waiting).await?;
        let client = site.fixture.admin().await?;
        bare::read(&client).await?; // whoever comes first finds no page warm
        let last = Last::find(&site.admin).await?;
        let held = drain(&site, &format!("held{round}"), &last, 1).await?.rate();
        classic::copy(&site).await?;
        let (messages, took) = classic::drain(&client, CLASSIC_BATCH).await?;
        let classic_held = rate(count(messages), took);
        holder.batch_execute("rollback").await.map_err(|cause| Error::because("ending the snapshot", &cause))?;
        let free = drain(&site, &format!("free{round}"), &last, 1).await?.rate();
        classic::copy(&site).await?;
        let (messages, took) = classic::drain(&client, CLASSIC_BATCH).await?;
        kept.push(held / free);
        classic_kept.push(classic_held / rate(count(messages), took));
        free_rates.push(free);
    }
    figures.add("snapshot_free_per_second", median(&free_rates), "messages/s without an old snapshot");
    figures.judge("snapshot_kept", median(&kept), "of the rate under an old snapshot", Goal::AtLeast(0.95));
    figures.add("snapshot_classic_kept", median(&classic_kept), "of its rate, the classic relay");
    Ok(())
}
