//! How late messages are: from the answer to the writer's commit to their row in the inbox of a `postgres` sink, at 600
//! messages a second in an open loop. Writers, servers and relay read one clock.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::Args;
use super::figures::{Figures, Goal, count, percentile};
use super::site::{Site, end, poll, shared_out};
use super::writers::{Sent, Writers, now};
use crate::Error;
use crate::process::Process;

const INBOX: &str = "app.inbox";

/// Until caches are warm and every plan has been made.
const WARM_UP: Duration = Duration::from_secs(2);

/// All in microseconds since 1970. Commit times are when the commit record was written: the disk comes after that.
const ARRIVED: &str = "
select i.message_id, extract(epoch from i.received_at)::float8 * 1e6 as received,
       extract(epoch from i.created_at)::float8 * 1e6 as created,
       extract(epoch from pg_xact_commit_timestamp(i.xmin))::float8 * 1e6 as stored
from app.inbox i";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    to_a_file(args, figures).await?;
    for replicas in [1, 3] {
        let site = Site::open(args).await?;
        figures.doing(&format!("latency: {replicas} replica(s)"));
        site.fixture.inbox(INBOX).await?;
        let (processes, writers) = started(&site, replicas, &site.fixture.inbox_sink(INBOX)).await?;
        let warm = writers.write(WARM_UP.min(args.seconds(2))).await?.len();
        let sent = writers.write(args.seconds(20)).await?;
        let all = i64::try_from(warm + sent.len()).unwrap_or(i64::MAX);
        poll(|| async { Ok(site.value::<i64>("select count(*) from app.inbox").await? >= all) }).await?;
        for process in processes {
            end(process).await?;
        }
        report(figures, &site, &sent, if replicas == 1 { "latency" } else { "latency_three" }).await?;
    }
    Ok(())
}

async fn started(site: &Site, replicas: usize, sink: &str) -> Result<(Vec<Process>, Writers), Error> {
    let mut processes = Vec::new();
    for number in 1..=replicas {
        processes.push(site.start(&format!("late-{number}"), "late", sink, "")?);
    }
    shared_out(site, "late", replicas).await?;
    Ok((processes, Writers::connect(site).await?))
}

/// The relay alone: an inbox on the same machine costs more of its processors than the relay does.
async fn to_a_file(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    figures.doing("latency: 1 replica, to a file");
    let (processes, writers) = started(&site, 1, &site.fixture.file_sink()).await?;
    let (stop, stopped) = std::sync::mpsc::channel();
    let file = site.fixture.file();
    let watcher = std::thread::spawn(move || watch(&file, &stopped));
    let warm = writers.write(WARM_UP.min(args.seconds(2))).await?.len();
    let sent = writers.write(args.seconds(20)).await?;
    let all = warm + sent.len();
    let lines = || std::fs::read_to_string(site.fixture.file()).map_or(0, |text| text.lines().count());
    poll(|| async { Ok(lines() >= all) }).await?;
    drop(stop);
    let arrived = watcher.join().map_err(|_| Error::new("the file's watcher panicked"))??;
    for process in processes {
        end(process).await?;
    }
    let mut received = Vec::new();
    for Sent { message, committed } in sent {
        let at = arrived.get(&message).ok_or_else(|| Error::new(format!("message {message} did not arrive")))?;
        received.push((at - committed) / 1e3);
    }
    figures.judge("latency_file_p50_ms", percentile(&received, 0.5), "ms commit to file", Goal::AtMost(5.0));
    figures.judge("latency_file_p99_ms", percentile(&received, 0.99), "ms commit to file", Goal::AtMost(25.0));
    Ok(())
}

/// Reads the file as it grows, until told to stop, and notes when each message was there.
fn watch(path: &Path, stopped: &Receiver<()>) -> Result<HashMap<String, f64>, Error> {
    const PAUSE: Duration = Duration::from_micros(200);
    let failed = |cause| Error::because("watching the sink's file", &cause);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let (mut arrived, mut line) = (HashMap::new(), String::new());
    loop {
        while file.read_line(&mut line).map_err(failed)? > 0 && line.ends_with('\n') {
            let at = now();
            // Every line begins with its message's id.
            let id = line.split('"').nth(3).unwrap_or_default();
            arrived.insert(id.to_owned(), at);
            line.clear();
        }
        if let Ok(()) | Err(TryRecvError::Disconnected) = stopped.try_recv() {
            return Ok(arrived);
        }
        std::thread::sleep(PAUSE);
    }
}

async fn report(figures: &mut Figures, site: &Site, sent: &[Sent], name: &str) -> Result<(), Error> {
    let rows = site.admin.query(ARRIVED, &[]).await.map_err(|cause| Error::because("reading the inbox", &cause))?;
    let arrived: HashMap<&str, [f64; 3]> =
        rows.iter().map(|row| (row.get(0), [row.get(1), row.get(2), row.get(3)])).collect();
    let (mut received, mut from_insert, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for Sent { message, committed } in sent {
        let Some([at, created, kept]) = arrived.get(message.as_str()) else {
            return Err(Error::new(format!("message {message} did not arrive")));
        };
        received.push((at - committed) / 1e3);
        from_insert.push((at - created) / 1e3);
        stored.push((kept - committed) / 1e3);
    }
    let late = |values: &[f64], most: f64| count(values.iter().filter(|value| **value > most).count());
    let (p50, p99) = (percentile(&received, 0.5), percentile(&received, 0.99));
    if name == "latency" {
        figures.judge("latency_p50_ms", p50, "ms commit to inbox", Goal::AtMost(5.0));
        figures.judge("latency_p99_ms", p99, "ms commit to inbox", Goal::AtMost(25.0));
    } else {
        figures.add(&format!("{name}_p50_ms"), p50, "ms commit to inbox, all on this machine");
        figures.add(&format!("{name}_p99_ms"), p99, "ms commit to inbox, all on this machine");
    }
    figures.add(&format!("{name}_max_ms"), percentile(&received, 1.0), "ms commit to inbox");
    figures.add(&format!("{name}_later_than_25_ms"), late(&received, 25.0), "messages");
    figures.add(&format!("{name}_stored_p50_ms"), percentile(&stored, 0.5), "ms commit to the inbox's own commit");
    figures.add(&format!("{name}_stored_p99_ms"), percentile(&stored, 0.99), "ms commit to the inbox's own commit");
    figures.add(&format!("{name}_from_insert_p50_ms"), percentile(&from_insert, 0.5), "ms insert to inbox");
    figures.add(&format!("{name}_from_insert_p99_ms"), percentile(&from_insert, 0.99), "ms insert to inbox");
    Ok(())
}
