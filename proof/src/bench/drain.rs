//! How fast a backlog is drained into `discard`, acknowledging as by default, from the first claim until positions
//! cover the last message; beside a bare reader of the same rows, and the fastest relay that locks rows.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::covered::Last;
use super::figures::{Figures, Goal, median, rate};
use super::site::{Site, end, joined, poll_every};
use super::{Args, LANES, bare, classic, messages, usage};
use crate::Error;
use crate::process::{self, Process};

/// A sink that costs nothing.
pub(super) const DISCARD: &str = "{ type = \"discard\" }";

/// A replica looks at the lanes four times a second. Twice that, and each knows of all the others.
const ALL_HAVE_LOOKED: Duration = Duration::from_millis(500);

/// Batches that the classic relay is tried with.
const CLASSIC_BATCHES: [i64; 4] = [1_000, 2_000, 3_000, 5_000];

/// One drain.
pub(super) struct Drained {
    pub(super) messages: f64,
    pub(super) took: Duration,
    /// Of the client, or of all replicas.
    client_processor: Duration,
    /// Of its connections' backends.
    server_processor: Duration,
    /// Bytes of WAL that were written meanwhile.
    pub(super) wal: f64,
    /// Of the replica with the most.
    pub(super) most_resident: f64,
}

impl Drained {
    pub(super) fn rate(&self) -> f64 {
        rate(self.messages, self.took)
    }

    fn nanoseconds_a_message(&self, of: Duration) -> f64 {
        of.as_secs_f64() * 1e9 / self.messages.max(1.0)
    }
}

/// Has a new relay deliver everything that waits. All replicas know of each other before the first of them may claim.
pub(super) async fn drain(site: &Site, relay: &str, last: &Last, replicas: usize) -> Result<Drained, Error> {
    drain_with(site, relay, last, replicas, "").await
}

/// The same with further keys of the relay's configuration.
async fn drain_with(site: &Site, relay: &str, last: &Last, replicas: usize, keys: &str) -> Result<Drained, Error> {
    let done = || last.covered(&site.admin, relay);
    let messages = rate(f64::from(i32::try_from(last.messages).unwrap_or(i32::MAX)), Duration::from_secs(1));
    drain_backlog(site, relay, Backlog { messages, done }, replicas, keys).await
}

/// What waits, and whether it has been dealt with.
pub(super) struct Backlog<Done> {
    pub(super) messages: f64,
    pub(super) done: Done,
}

/// The same for whatever waits.
pub(super) async fn drain_backlog(
    site: &Site,
    relay: &str,
    backlog: Backlog<impl AsyncFnMut() -> Result<bool, Error>>,
    replicas: usize,
    keys: &str,
) -> Result<Drained, Error> {
    let Backlog { messages, done } = backlog;
    let gate = Gate::shut(site, relay).await?;
    let mut processes: Vec<Process> = Vec::new();
    for number in 1..=replicas {
        processes.push(site.start(&format!("{relay}-{number}"), relay, DISCARD, keys)?);
    }
    joined(site, relay, replicas).await?;
    tokio::time::sleep(ALL_HAVE_LOOKED).await;
    let ids: Vec<u32> = processes.iter().map(Process::id).collect();
    let wal = site.wal().await?;
    let before = (usage::processor(&ids)?, usage::processor(&backends(site).await?)?);
    gate.open().await?;
    let claimed = format!("select count(owner) > 0 from pgbaton.lane where relay = '{relay}'");
    while !site.value::<bool>(&claimed).await? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let began = Instant::now();
    // Often enough to be exact, and not so often that looking costs the server more than the relay does.
    let pause = if messages < 100_000.0 { Duration::from_millis(1) } else { process::POLL };
    poll_every(pause, done).await?;
    let took = began.elapsed();
    let after = (usage::processor(&ids)?, usage::processor(&backends(site).await?)?);
    let wal = site.wal().await? - wal;
    let mut most_resident = 0.0f64;
    for id in ids {
        most_resident = most_resident.max(usage::most_resident(id)?);
    }
    for process in processes {
        end(process).await?;
    }
    let (client_processor, server_processor) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    Ok(Drained { messages, took, client_processor, server_processor, wal, most_resident })
}

/// The backends of all replicas.
async fn backends(site: &Site) -> Result<Vec<u32>, Error> {
    let sql = "select coalesce(array_agg(pid), '{}') from pg_stat_activity where usename = 'pgbaton_relay'";
    Ok(site.value::<Vec<i32>>(sql).await?.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect())
}

/// Keeps replicas from claiming: it holds the lanes' locks, as an acknowledgement does that takes its time.
struct Gate(Client);

impl Gate {
    async fn shut(site: &Site, relay: &str) -> Result<Gate, Error> {
        let client = site.fixture.admin().await?;
        let lock =
            format!("select pg_advisory_lock(pgbaton.lane_lock('{relay}', n)) from generate_series(0, {LANES} - 1) n");
        client.batch_execute(&lock).await.map_err(|cause| Error::because("locking the lanes", &cause))?;
        Ok(Gate(client))
    }

    async fn open(self) -> Result<(), Error> {
        let unlocked = self.0.batch_execute("select pg_advisory_unlock_all()").await;
        unlocked.map_err(|cause| Error::because("unlocking the lanes", &cause))
    }
}

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let small = args.messages(10_000, 1_000).min(10_000);
    few(args, figures, &site, small).await?;
    let many = args.messages(2_000_000, 20_000);
    figures.doing(&format!("drain: {many} messages, in turn with a bare reader and a classic relay"));
    messages::write(&site, many.saturating_sub(small)).await?;
    let rates = compare(args, figures, &site).await?;
    if args.large {
        figures.doing("drain: 10,000,000 messages");
        messages::write(&site, 10_000_000u32.saturating_sub(many)).await?;
        let last = Last::find(&site.admin).await?;
        let all = drain(&site, "large", &last, 1).await?;
        figures.add("drain_10000000_per_second", all.rate(), "messages/s with 10,000,000 waiting");
        figures.judge("drain_10000000_of_2000000", all.rate() / rates, "of the rate above", Goal::AtLeast(0.9));
    }
    Ok(())
}

/// So few messages are read in a moment, and then wait for the next acknowledgement, which comes within 100 ms. So they
/// are also drained with acknowledgements at once: only that rate can be compared with the one of millions.
async fn few(args: &Args, figures: &mut Figures, site: &Site, small: u32) -> Result<(), Error> {
    figures.doing(&format!("drain: {small} messages"));
    messages::write(site, small).await?;
    let last = Last::find(&site.admin).await?;
    let (mut usual, mut at_once) = (Vec::new(), Vec::new());
    for round in 0..args.rounds(5) {
        usual.push(drain(site, &format!("few{round}"), &last, 1).await?);
        let keys = "acknowledge = \"1ms\"";
        at_once.push(drain_with(site, &format!("once{round}"), &last, 1, keys).await?.rate());
    }
    figures.add("drain_10000_seconds", median(&seconds(&usual)), "s from first claim to last position, 10,000 waiting");
    figures.add("drain_10000_per_second", median(&at_once), "messages/s, 10,000 waiting, acknowledged at once");
    Ok(())
}

fn seconds(drains: &[Drained]) -> Vec<f64> {
    drains.iter().map(|drained| drained.took.as_secs_f64()).collect()
}

/// All that drain or read the same messages, in turn. Gives the rate of one replica.
async fn compare(args: &Args, figures: &mut Figures, site: &Site) -> Result<f64, Error> {
    let last = Last::find(&site.admin).await?;
    let client = site.fixture.admin().await?;
    let batch = best_classic_batch(args, site, &client).await?;
    let (mut one, mut three, mut bare, mut classic) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds(5) {
        one.push(drain(site, &format!("one{round}"), &last, 1).await?);
        bare.push(metered(&client, bare::read(&client)).await?);
        three.push(drain(site, &format!("three{round}"), &last, 3).await?);
        classic::copy(site).await?;
        classic.push(metered(&client, classic::drain(&client, batch)).await?);
    }
    let rates = |drains: &[Drained]| median(&drains.iter().map(Drained::rate).collect::<Vec<_>>());
    costs(figures, &[("relay", &one), ("three", &three), ("bare", &bare), ("classic", &classic)]);
    let (relay, bare, classic) = (rates(&one), rates(&bare), rates(&classic));
    figures.add("drain_relay_per_second", relay, "messages/s, one replica");
    figures.add("drain_bare_per_second", bare, "messages/s, bare reader");
    figures.add("drain_classic_per_second", classic, &format!("messages/s, classic relay, batches of {batch}"));
    figures.judge("drain_relay_of_bare", relay / bare.max(1.0), "of the bare reader", Goal::AtLeast(0.6));
    figures.judge("drain_relay_of_classic", relay / classic.max(1.0), "times the classic relay", Goal::AtLeast(3.0));
    figures.add("drain_three_per_second", rates(&three), "messages/s, three replicas on this machine");
    figures.judge("drain_three_of_one", rates(&three) / relay.max(1.0), "of one replica", Goal::AtLeast(0.9));
    Ok(relay)
}

/// Processor time of clients and servers, which says more than the rate where others use the machine, too.
fn costs(figures: &mut Figures, all: &[(&str, &[Drained])]) {
    for (name, drains) in all {
        let cost = |of: fn(&Drained) -> Duration| {
            median(&drains.iter().map(|drained| drained.nanoseconds_a_message(of(drained))).collect::<Vec<_>>())
        };
        let (client, server) = (cost(|drained| drained.client_processor), cost(|drained| drained.server_processor));
        figures.add(&format!("drain_{name}_cpu_ns_per_message"), client, "ns of processor, client side");
        figures.add(&format!("drain_{name}_server_cpu_ns_per_message"), server, "ns of processor, server");
    }
}

/// A drain by this process over this one connection.
async fn metered(
    client: &Client,
    work: impl Future<Output = Result<(usize, Duration), Error>>,
) -> Result<Drained, Error> {
    let row = client.query_one("select pg_backend_pid()", &[]).await;
    let pid: i32 =
        row.and_then(|row| row.try_get(0)).map_err(|cause| Error::because("asking for the backend", &cause))?;
    let (own, backend) = ([std::process::id()], [u32::try_from(pid).unwrap_or_default()]);
    let before = (usage::processor(&own)?, usage::processor(&backend)?);
    let (messages, took) = work.await?;
    Ok(Drained {
        messages: super::figures::count(messages),
        took,
        client_processor: usage::processor(&own)?.saturating_sub(before.0),
        server_processor: usage::processor(&backend)?.saturating_sub(before.1),
        wal: 0.0,
        most_resident: 0.0,
    })
}

fn per_second((messages, took): (usize, Duration)) -> f64 {
    rate(super::figures::count(messages), took)
}

/// What this machine's classic relay is fastest with, tried on a part of its messages each.
async fn best_classic_batch(args: &Args, site: &Site, client: &Client) -> Result<i64, Error> {
    classic::copy(site).await?;
    let part = usize::try_from(args.messages(2_000_000, 20_000) / 8).unwrap_or(usize::MAX);
    let mut best = (0.0, 1_000);
    for batch in CLASSIC_BATCHES {
        let rate = per_second(classic::drain_at_most(client, batch, part).await?);
        if rate > best.0 {
            best = (rate, batch);
        }
    }
    Ok(best.1)
}
