//! `synthetic FOLDER [MESSAGES]`: writes the history of a faultless run, ten million messages by default, to measure with what
//! a long run costs the checker in time and memory:
//!
//! ```sh
//! cargo run --release -p checker --example synthetic -- target/synthetic
//! time target/release/checker target/synthetic
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use checker::history::{Event, Grant, Message, Nanos, Position, Record, Run};

const REPLICAS: u32 = 3;
const LANES: u32 = 16;
const KEYS: u32 = 50_000;
const BATCH: usize = 100;
/// Batches of a lane to one acknowledgement.
const TO_ONE_POSITION: i64 = 5;
const MESSAGES_OF_TRANSACTION: u64 = 2;
const SECOND: Nanos = 1_000_000_000;

struct Out(BufWriter<File>, u64);

impl Out {
    fn new(folder: &Path, name: &str) -> io::Result<Self> {
        Ok(Self(BufWriter::with_capacity(1 << 20, File::create(folder.join(format!("{name}.history")))?), 0))
    }

    fn tell(&mut self, t: Nanos, event: Event) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, &Record { t, event })?;
        self.1 += 1;
        self.0.write_all(b"\n")
    }
}

/// A lane that fills its batches.
struct Lane {
    replica: String,
    grant: Grant,
    batch: i64,
    waiting: Vec<String>,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(folder) = arguments.get(1) else { return Err(io::Error::other("usage: synthetic FOLDER [MESSAGES]")) };
    let messages = arguments.get(2).and_then(|count| count.parse().ok()).unwrap_or(10_000_000_u64);
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    let mut stage = Out::new(folder, "stage")?;
    let mut writer = Out::new(folder, "writer")?;
    let mut replicas: Vec<Out> =
        (0..REPLICAS).map(|n| Out::new(folder, &format!("replica-{n}"))).collect::<io::Result<_>>()?;
    let run = Run {
        seed: 1,
        sink: "postgres".into(),
        exactly_once: true,
        in_flight: 1_000,
        batch_messages: BATCH as u64,
        ttl_ms: 5_000,
        drain_within_ms: 60_000,
        drain_ms: 5_000,
    };
    stage.tell(0, Event::Run(run))?;
    let mut lanes = claim(&mut replicas)?;
    let mut numbers = vec![0_u64; KEYS as usize];
    let (mut t, mut told) = (3 * SECOND, 0);
    let step = 3_600 * SECOND / messages.max(1);
    for transaction in 0..messages / MESSAGES_OF_TRANSACTION {
        let mut wrote = Vec::new();
        for nth in 0..MESSAGES_OF_TRANSACTION {
            let number = transaction * MESSAGES_OF_TRANSACTION + nth;
            let key = u32::try_from(number.wrapping_mul(2_654_435_761) % u64::from(KEYS)).unwrap_or_default();
            let Some(n) = numbers.get_mut(key as usize) else { continue };
            *n += 1;
            wrote.push(Message { id: id(number), key: Some(key), n: *n });
            if let Some(lane) = lanes.get_mut((key % LANES) as usize) {
                lane.waiting.push(id(number));
            }
            t += step;
        }
        writer.tell(t, Event::Wrote { transaction, messages: wrote })?;
        writer.tell(t + 1, Event::Committed { transaction, sent: t })?;
        for (lane, nth) in lanes.iter_mut().zip(0_usize..).filter(|(lane, _)| lane.waiting.len() >= BATCH) {
            if let Some(out) = replicas.get_mut(nth % REPLICAS as usize) {
                deliver(lane, out, &mut stage, t + 2)?;
            }
        }
        if t / SECOND > told {
            told = t / SECOND;
            let (name, connections) = ("primary".to_owned(), Some(9));
            stage.tell(t, Event::Sample { name, pid: None, resident_kib: None, files: None, connections })?;
            for (n, out) in replicas.iter_mut().enumerate() {
                out.tell(t, Event::Renewed { replica: format!("r{n}"), until: t + 4 * SECOND, confirmed: Some(t) })?;
            }
        }
    }
    for (lane, nth) in lanes.iter_mut().zip(0_usize..) {
        if let Some(out) = replicas.get_mut(nth % REPLICAS as usize) {
            deliver(lane, out, &mut stage, t + 2)?;
        }
    }
    stage.tell(t + 10, Event::Calm)?;
    stage.tell(t + 20, Event::Drained)?;
    let transactions: Vec<u64> = (0..messages / MESSAGES_OF_TRANSACTION).collect();
    for transactions in transactions.chunks(10_000) {
        stage.tell(t + 30, Event::Ledger { transactions: transactions.to_vec() })?;
    }
    let lines = BTreeMap::from([("stage".to_owned(), stage.1 + 1), ("writer".to_owned(), writer.1)]);
    stage.tell(t + 40, Event::End { lines })?;
    stage.0.flush()?;
    writer.0.flush()?;
    replicas.iter_mut().try_for_each(|out| out.0.flush())
}

fn id(number: u64) -> String {
    format!("019a{:04x}-0000-7000-8000-{number:012x}", number % 65_536)
}

fn claim(replicas: &mut [Out]) -> io::Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for (n, out) in (0..).zip(replicas.iter_mut()) {
        let replica = format!("r{n}");
        let (name, pid) = (format!("replica-{n}"), 1_000 + n);
        out.tell(SECOND, Event::Joined { replica: replica.clone(), name, pid, ttl_ms: 5_000, until: 5 * SECOND })?;
    }
    for lane in 0..LANES {
        let grant = Grant { relay: "orders".into(), lane, of: LANES, epoch: 1 };
        let n = lane % REPLICAS;
        let replica = format!("r{n}");
        if let Some(out) = replicas.get_mut(n as usize) {
            let grants = vec![grant.clone()];
            out.tell(2 * SECOND, Event::Claimed { replica: replica.clone(), sent: 2 * SECOND, timeline: 1, grants })?;
        }
        lanes.push(Lane { replica, grant, batch: 0, waiting: Vec::new() });
    }
    Ok(lanes)
}

fn deliver(lane: &mut Lane, out: &mut Out, stage: &mut Out, t: Nanos) -> io::Result<()> {
    let ids = std::mem::take(&mut lane.waiting);
    lane.batch += 1;
    let (replica, grant, batch) = (lane.replica.clone(), lane.grant.clone(), lane.batch);
    let answer = "d".repeat(ids.len());
    stage.tell(t, Event::Arrived { place: "inbox".into(), ids: ids.clone(), contents: Vec::new() })?;
    let (lane, timeline) = (grant.clone(), 1);
    out.tell(t, Event::Publish { replica: replica.clone(), grant: lane.clone(), timeline, batch, ids })?;
    out.tell(t, Event::Writing { replica: replica.clone(), grant: lane, looked: t })?;
    out.tell(t + 1, Event::Answered { replica: replica.clone(), grant: grant.clone(), batch, answer })?;
    if batch % TO_ONE_POSITION == 0 {
        let positions = vec![Position { grant, batch, consumed: Some(t), again: false }];
        let (sent, changed, aside) = (t + 2, Vec::new(), Vec::new());
        out.tell(t + 3, Event::Acknowledged { replica, sent, timeline: 1, positions, changed, aside })?;
    }
    Ok(())
}
