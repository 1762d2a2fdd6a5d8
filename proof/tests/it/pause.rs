//! A replica that is frozen or killed at the worst moments, past its lease, with the real executable.
//!
//! With an inbox table nothing is ever repeated: the sink refuses the epoch that is over. With a file, which can refuse
//! nobody, what repeats is at most what was in flight.

use proof::fixture::{Fixture, PRODUCER};
use proof::process::Process;
use proof::writers::{self, Arrival, Mix, Plan, Verdict, Writers, Written};
use tokio_postgres::Client;

use crate::hand::{SOON, until};
use crate::lines::arrivals_in;

const LANES: usize = 4;
const IN_FLIGHT: usize = 40;
const TTL: &str = "2s";
const KEYS: u32 = 40;
const BACKLOG: usize = 1_500;
const AFTERWARDS: usize = 200;

/// Two tests for each fail point: the replica is stopped there, and it is killed there, with either sink. The number says
/// which time it comes by.
macro_rules! interrupted {
    ($($name:ident = $point:literal : $at:literal),+ $(,)?) => { $(
        mod $name {
            use super::{Action, into_a_file, into_an_inbox};

            #[tokio::test]
            async fn stopped() {
                tokio::join!(into_an_inbox($point, Action::Stop, $at), into_a_file($point, Action::Stop, $at));
            }
            #[tokio::test]
            async fn killed() {
                tokio::join!(into_an_inbox($point, Action::Kill, $at), into_a_file($point, Action::Kill, $at));
            }
        }
    )+ };
}

interrupted! {
    while_opening_a_lane = "lane.fenced":2,
    before_an_append = "lane.before_append":5,
    between_check_and_send = "sink.checked":5,
    after_an_append = "lane.appended":5,
    once_delivered = "lane.delivered":5,
    with_the_lock_of_an_acknowledgement = "acknowledge.locked":2,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Stop,
    Kill,
}

/// One run: the first replica alone until it is interrupted, then the second one, then both.
struct Run {
    fixture: Fixture,
    admin: Client,
    written: Written,
    first: Process,
    second: Process,
}

/// `sinks`: what the replicas deliver to. `arrived`: what is at the destination.
async fn interrupt(
    fixture: Fixture,
    sinks: [String; 2],
    fault: (&str, Action, u32),
    arrived: impl AsyncFn(&Fixture) -> Vec<Arrival>,
) -> Run {
    let (point, action, at) = fault;
    let admin = fixture.admin().await.unwrap();
    writers::prepare(&admin, PRODUCER, KEYS).await.unwrap();
    let mut written = write(&fixture, BACKLOG, 1).await;

    let verb = if action == Action::Stop { "stop" } else { "kill" };
    let fault = format!("{point}:{verb}:{at}");
    let mut first = fixture.run_with_faults("first", &relays(&sinks[0]), &fault).unwrap();
    until("the first replica is interrupted", async || interrupted(&mut first, action)).await;
    assert!(arrived(&fixture).await.len() < BACKLOG, "it had everything delivered before");
    let mut second = fixture.run("second", &relays(&sinks[1])).unwrap();
    until("the second one delivers everything", || async { is_all_there(&written, &arrived(&fixture).await) }).await;
    second.wait_for_lines("claimed", LANES, SOON).await.unwrap();

    if action == Action::Stop {
        first.resume().unwrap();
        first.wait_for_line("this replica's lease is over", SOON).await.unwrap();
        // It starts again, and takes its share.
        first.wait_for_lines("joined", 2, SOON).await.unwrap();
    }
    written.sent.extend(write(&fixture, AFTERWARDS, 2).await.sent);
    until("what came afterwards arrives", || async { is_all_there(&written, &arrived(&fixture).await) }).await;
    Run { fixture, admin, written, first, second }
}

async fn write(fixture: &Fixture, messages: usize, seed: u64) -> Written {
    let mix = Mix { long: 0.0, ..Mix::default() };
    let plan = Plan { messages: messages as u64, keys: KEYS, tasks: 4, seed, mix, ..Plan::default() };
    Writers::start(fixture.producer_dsn(), plan).await.unwrap().finish().await.unwrap()
}

fn relays(sink: &str) -> String {
    format!(
        "[lease]\nttl = \"{TTL}\"\n[relays.orders]\nlanes = {LANES}\nin_flight = {IN_FLIGHT}\nbatch_messages = 10\nsink = {sink}"
    )
}

fn interrupted(process: &mut Process, action: Action) -> bool {
    let ended = process.exit_status().unwrap().is_some();
    if action == Action::Kill {
        return ended;
    }
    assert!(!ended, "it ended");
    process.is_stopped()
}

fn is_all_there(written: &Written, arrivals: &[Arrival]) -> bool {
    let verdict = Verdict::of(written, arrivals);
    verdict.lost == 0
}

impl Run {
    async fn end(mut self) -> Written {
        for process in [&mut self.first, &mut self.second] {
            if process.exit_status().unwrap().is_none() {
                process.terminate().unwrap();
                assert!(process.wait(SOON).await.unwrap().success());
            }
        }
        self.written
    }
}

/// Counts every try at inserting a row, also those that its unique key would drop.
const COUNT_TRIES: &str = "
    create table app.tries (message_id text);
    create function app.count_try() returns trigger language plpgsql security definer as $$
      begin insert into app.tries values (new.message_id); return new; end $$;
    create trigger count_try before insert on app.inbox for each row execute function app.count_try();";

async fn into_an_inbox(point: &str, action: Action, at: u32) {
    let fixture = Fixture::new(15).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    fixture.admin().await.unwrap().batch_execute(COUNT_TRIES).await.unwrap();
    let sink = fixture.inbox_sink("app.inbox");
    let run = interrupt(fixture, [sink.clone(), sink], (point, action, at), in_the_inbox).await;

    let arrivals = in_the_inbox(&run.fixture).await;
    // That an older epoch is refused, and how, is in the conformance suite. Here: nothing of it got through.
    let tries: i64 = run.admin.query_one("select count(*) from app.tries", &[]).await.unwrap().get(0);
    assert_eq!(usize::try_from(tries).unwrap(), arrivals.len(), "a message was written twice, and its key dropped it");
    if (point, action) == ("lane.appended", Action::Kill) {
        let settled = run.second.lines_with("recorded as delivered");
        assert!(!settled.is_empty(), "the batch whose acknowledgement was lost was settled");
    }
    let written = run.end().await;
    let verdict = Verdict::of(&written, &arrivals);
    assert!(verdict.is_flawless() && verdict.delivered == BACKLOG + AFTERWARDS, "{verdict:?}");
}

async fn in_the_inbox(fixture: &Fixture) -> Vec<Arrival> {
    let admin = fixture.admin().await.unwrap();
    let rows = admin.query("select message_id, payload_json::text from app.inbox order by seq", &[]).await.unwrap();
    rows.iter().map(|row| Arrival { message_id: row.get(0), payload: row.get(1) }).collect()
}

async fn into_a_file(point: &str, action: Action, at: u32) {
    let fixture = Fixture::new(15).await.unwrap();
    let sinks = ["first", "second"].map(|name| {
        let path = fixture.folder().join(format!("{name}.jsonl"));
        format!("{{ type = \"file\", path = {} }}", proof::fixture::toml_text(&path.to_string_lossy()))
    });
    let run = interrupt(fixture, sinks, (point, action, at), in_the_files).await;

    let arrivals = in_the_files(&run.fixture).await;
    let verdict = Verdict::of(&run.written, &arrivals);
    assert_eq!((verdict.lost, verdict.unexpected), (0, 0), "{verdict:?}");
    assert!(verdict.duplicates <= LANES * IN_FLIGHT, "more repeats than were in flight: {verdict:?}");
    let must_repeat = match action {
        Action::Stop => point == "sink.checked", // it wakes up and sends: nobody stops it
        Action::Kill => point == "lane.appended",
    };
    assert!(!must_repeat || verdict.duplicates > 0, "this test shows nothing: {verdict:?}");
    run.end().await;
}

async fn in_the_files(fixture: &Fixture) -> Vec<Arrival> {
    ["first", "second"].iter().flat_map(|name| arrivals_in(&fixture.folder().join(format!("{name}.jsonl")))).collect()
}
