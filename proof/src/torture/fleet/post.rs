//! One replica's place, in which processes come and go.
//!
//! Each start gets a new file for its history and, now and then, a fail point at which the process will stop or kill itself. Who
//! stops itself is seen by a watcher, and resumed after less or more than a lease.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::Instant;

use super::{Common, LANES, STOP_WITHIN};
use checker::history::DISARM;

use crate::Error;
use crate::clock::Clock;
use crate::fixture::{RELAY, executable, toml_text};
use crate::process::{Process, last_lines};
use crate::torture::log::{Fault, Log};
use crate::torture::plan::{BATCH_MESSAGES, IN_FLIGHT, Plan, TTL, millis};
use crate::torture::ways::Ways;

const LOOK_EVERY: Duration = Duration::from_millis(30);
/// Where a replica can stop or kill itself.
const POINTS: [&str; 7] = [
    "sink.checked",
    "sink.mid_batch",
    "lane.fenced",
    "lane.before_append",
    "lane.appended",
    "lane.delivered",
    "acknowledge.locked",
];

/// What a replica's configuration says besides where everything is.
#[derive(Clone, Copy, Debug)]
struct Settings {
    batch_messages: u64,
    in_flight: u64,
    poll_idle_ms: u64,
}

impl Settings {
    fn draw(random: &mut StdRng) -> Settings {
        let batch_messages = random.random_range(10..=BATCH_MESSAGES);
        Settings {
            batch_messages,
            in_flight: random.random_range(batch_messages..=IN_FLIGHT),
            poll_idle_ms: random.random_range(5..100),
        }
    }
}

/// One replica's place: processes come and go in it.
pub(in crate::torture) struct Post {
    pub(in crate::torture) name: String,
    pub(in crate::torture) ways: Ways,
    pub(in crate::torture) clock: Option<Clock>,
    /// Its process lasts through the whole run, whatever else happens to it, so that a leak would show.
    pub(in crate::torture) lasting: bool,
    state: Mutex<State>,
}

/// Who is in it.
pub(in crate::torture) struct State {
    process: Option<Process>,
    starts: u32,
    random: StdRng,
    settings: Settings,
    /// Somebody has it paused, who resumes it.
    pub(in crate::torture) paused: bool,
    /// It has a fail point.
    armed: bool,
    /// When the next process starts.
    due: Instant,
    /// What ended the last process; over when the next one has started.
    ended_by: Option<Fault>,
}

impl Post {
    pub(super) async fn new(
        plan: &Plan,
        number: u32,
        lasting: bool,
        common: &Common,
        ports: &watch::Sender<[u16; 2]>,
    ) -> Result<Post, Error> {
        let name = format!("r{number}");
        let mut random = plan.random("replica", u64::from(number));
        let clock = Clock::new(&plan.folder.join(format!("{name}.clock"))).ok();
        let ways = Ways::open(ports, common.destination.port()).await?;
        let settings = Settings::draw(&mut random);
        let state = State {
            process: None,
            starts: 0,
            random,
            settings,
            paused: false,
            armed: false,
            due: Instant::now(),
            ended_by: None,
        };
        Ok(Post { name, ways, clock, lasting, state: Mutex::new(state) })
    }

    /// A process that may yet stop or kill itself is replaced.
    pub(super) async fn disarm(&self, log: &Log) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if state.armed && state.process.is_some() {
            let fault = log.begin(DISARM, &self.name, state.pid());
            state.kill(Duration::ZERO, fault)?;
        }
        Ok(())
    }

    pub(in crate::torture) async fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    /// Ends its process in order, and has another one started after a while. False if there was none.
    pub(in crate::torture) async fn stop(&self, after: Duration, log: &Log) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        let Some(mut process) = state.process.take() else { return Ok(false) };
        if process.terminate().is_ok() {
            // One that stands still at a fail point ends once it goes on.
            let _ = process.resume();
            match process.wait(STOP_WITHIN).await {
                Ok(status) if status.success() => {}
                // At a fail point, in this very moment.
                Ok(status) if killed(status) => log.begin("kill_at_point", &self.name, Some(process.id())).end(),
                Ok(status) => log.find(format!("{} did not stop in order ({status})", self.name)),
                Err(late) => log.find(late.to_string()),
            }
        }
        state.due = Instant::now() + after;
        Ok(true)
    }

    /// The next process gets another configuration.
    pub(in crate::torture) async fn change(&self) {
        let mut state = self.state.lock().await;
        state.settings = Settings::draw(&mut state.random);
    }

    /// Gives it another configuration, to be read again at once.
    pub(in crate::torture) async fn reconfigure(&self, folder: &Path, common: &Common) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        state.settings = Settings::draw(&mut state.random);
        self.write(&state, folder, common)?;
        let Some(process) = &mut state.process else { return Ok(false) };
        Ok(process.hang_up().is_ok())
    }

    fn write(&self, state: &State, folder: &Path, common: &Common) -> Result<(), Error> {
        let Settings { batch_messages, in_flight, poll_idle_ms } = state.settings;
        let text = format!(
            "name = \"{}\"\ndrain = \"5s\"\n[database]\ndsn = {}\n[lease]\nttl = \"{}s\"\n[http]\nlisten = \"off\"\n\
             [relays.orders]\nlanes = {LANES}\nbatch_messages = {batch_messages}\nin_flight = {in_flight}\n\
             poll_idle = \"{poll_idle_ms}ms\"\nacknowledge_idle = \"1s\"\nretry_cap = \"1s\"\nsink = {}\n",
            self.name,
            toml_text(&self.ways.dsn(&common.database, RELAY)),
            TTL.as_secs(),
            common.destination.section(&self.ways)
        );
        let path = folder.join(format!("{}.toml", self.name));
        std::fs::write(&path, text).map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))
    }

    fn begin(&self, state: &mut State, folder: &Path, common: &Common, points: bool) -> Result<(), Error> {
        state.starts += 1;
        let name = format!("{}-{}", self.name, state.starts);
        self.write(state, folder, common)?;
        let mut command = Command::new(executable()?);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        let fault = state.draw_point(self.lasting).filter(|_| points).unwrap_or_default();
        command
            .current_dir(folder)
            .env_remove("RUST_LOG")
            .env("HOME", folder)
            .arg("run")
            .arg("--config")
            .arg(folder.join(format!("{}.toml", self.name)))
            .env("PGBATON_HISTORY", folder.join(format!("{name}.history")))
            .env("PGBATON_FAULT", &fault);
        if let Some(clock) = &self.clock {
            command.envs(clock.environment(true));
        }
        state.armed = !fault.is_empty();
        state.process = Some(Process::start(&name, folder, command)?);
        state.ended_by = None;
        Ok(())
    }
}

/// Whether it was killed, by itself or by somebody else.
fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::KILL.as_raw())
}

impl State {
    pub(in crate::torture) fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// SIGKILL. The next process starts after a while, and ends the fault.
    pub(in crate::torture) fn kill(&mut self, after: Duration, fault: Fault) -> Result<(), Error> {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself in this moment.
            let _ = process.kill();
        }
        self.due = Instant::now() + after;
        self.ended_by = Some(fault);
        Ok(())
    }

    /// Half of the processes have one.
    fn draw_point(&mut self, lasting: bool) -> Option<String> {
        let random = &mut self.random;
        let (one, kill) = (random.random_bool(0.5), random.random_bool(0.4));
        let point = POINTS.get(random.random_range(0..POINTS.len()))?;
        // Now and then at once, and mostly after some time.
        let at = 1 << random.random_range(0..11_u32);
        let at = random.random_range(at..=at * 2);
        one.then(|| format!("{point}:{}:{at}", if kill && !lasting { "kill" } else { "stop" }))
    }
}

/// Starts, resumes and starts again, for as long as the run lasts.
pub(super) async fn watch_over(post: Arc<Post>, folder: PathBuf, common: Arc<Common>, points: watch::Receiver<bool>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let stands_still = {
            let mut state = post.state.lock().await;
            let points = *points.borrow();
            if let Err(error) = post.look(&mut state, &folder, &common, points) {
                common.log.find(error.to_string());
                state.due = Instant::now() + Duration::from_secs(1);
            }
            state.stands_still()
        };
        if let Some(pid) = stands_still {
            post.resume_after_a_while(pid, &common.log).await;
        }
    }
}

impl Post {
    fn look(&self, state: &mut State, folder: &Path, common: &Common, points: bool) -> Result<(), Error> {
        let Some(process) = &mut state.process else {
            return if Instant::now() >= state.due { self.begin(state, folder, common, points) } else { Ok(()) };
        };
        let Some(status) = process.exit_status()? else { return Ok(()) };
        let pid = process.id();
        if killed(status) {
            let fault = common.log.begin("kill_at_point", &self.name, Some(pid));
            state.ended_by = Some(fault);
        } else {
            let said = last_lines(process.stderr());
            common.log.find(format!("{} ended by itself ({status}); the end of its log:\n{said}", self.name));
        }
        state.process = None;
        state.due = Instant::now() + millis(&mut state.random, 0, 2_000);
        Ok(())
    }

    /// The same process, if it is still there.
    async fn resume_after_a_while(&self, pid: u32, log: &Log) {
        let fault = log.begin("stop_at_point", &self.name, Some(pid));
        let ttl = u64::try_from(TTL.as_millis()).unwrap_or_default();
        let asleep = {
            let random = &mut self.state.lock().await.random;
            if random.random_bool(0.4) { millis(random, 10, ttl * 3 / 4) } else { millis(random, ttl, ttl * 4) }
        };
        tokio::time::sleep(asleep).await;
        let mut state = self.state.lock().await;
        if let Some(process) = state.process.as_mut().filter(|process| process.id() == pid) {
            let _ = process.resume();
        }
        drop(state);
        fault.end();
    }
}

impl State {
    /// Its process, if it has stopped itself.
    fn stands_still(&self) -> Option<u32> {
        let pid = self.process.as_ref()?.id();
        if self.paused {
            return None;
        }
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let state = text.rsplit_once(')')?.1.split_whitespace().next()?;
        (state == "T").then_some(pid)
    }

    pub(in crate::torture) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }
}
