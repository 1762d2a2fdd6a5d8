//! One replica's place, in which processes come and go.
//!
//! Each start gets a new file for its history and, now and then, fail points at which the process will stop or kill itself. Who
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

use super::{Common, LANES, STOP_WITHIN, aims, fail_points_off};
use crate::Error;
use crate::clock::Clock;
use crate::fixture::{RELAY, executable, toml_text};
use crate::process::{POLL, Process, last_lines};
use crate::torture::log::{Fault, Log};
use crate::torture::outbox::NAME;
use crate::torture::plan::{BATCH_MESSAGES, DRAIN_MS, IN_FLIGHT, Plan, TTL, TTL_MS, millis};
use crate::torture::primary::{UNDO_WITHIN, again};
use crate::torture::ways::Ways;

const LOOK_EVERY: Duration = Duration::from_millis(30);

/// What a process says that has read its configuration again, and that starts again with it.
const READ_AGAIN: &str = "the configuration was read again";
const STARTS_AGAIN: &str = "then the replica starts again with it";

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
    number: u32,
    plan: Plan,
    pub(in crate::torture) ways: Ways,
    pub(in crate::torture) clock: Option<Clock>,
    /// Its process lasts through the whole run, whatever else happens to it, so that a leak would show.
    pub(in crate::torture) lasting: bool,
    /// False: nobody stops or kills itself any more.
    points: watch::Receiver<bool>,
    /// False: the next process starts later.
    starts: watch::Receiver<bool>,
    state: Mutex<State>,
}

/// Who is in it.
pub(in crate::torture) struct State {
    process: Option<Process>,
    starts: u32,
    /// How often the configuration was drawn.
    changes: u32,
    settings: Settings,
    /// How long this process stands still at its fail points.
    sleeps: StdRng,
    /// Somebody has it paused, who resumes it.
    pub(in crate::torture) paused: bool,
    /// It stands still at a fail point, until then.
    asleep: Option<(Fault, Instant)>,
    /// How much of what the process tells of its fail points was heard.
    heard: usize,
    /// It was told to read its configuration again, which it had done so many times before.
    told_to_read: Option<usize>,
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
        (ports, points, starts): (&watch::Sender<[u16; 2]>, watch::Receiver<bool>, watch::Receiver<bool>),
    ) -> Result<Post, Error> {
        let name = format!("r{number}");
        let clock = Clock::new(&plan.folder.join(format!("{name}.clock"))).ok();
        let ways = Ways::open(ports, common.destination.port()).await?;
        let state = State {
            process: None,
            starts: 0,
            changes: 0,
            settings: Settings::draw(&mut random(plan, "settings", number, 0)),
            sleeps: random(plan, "sleeps", number, 0),
            paused: false,
            asleep: None,
            heard: 0,
            told_to_read: None,
            due: Instant::now(),
            ended_by: None,
        };
        Ok(Post { name, number, plan: plan.clone(), ways, clock, lasting, points, starts, state: Mutex::new(state) })
    }

    /// Whether a process is there and goes on.
    pub(super) async fn is_at_work(&self) -> bool {
        let state = self.state.lock().await;
        let goes_on = |process: &Process| !process.is_stopped();
        state.ended_by.is_none() && state.asleep.is_none() && state.process.as_ref().is_some_and(goes_on)
    }

    /// Its ways are free, its files may grow, and its clock is right.
    pub(in crate::torture) async fn heal(&self) -> Result<(), Error> {
        self.free().await;
        let outbox = again(UNDO_WITHIN, || self.ways.heal()).await;
        let sink = match &self.ways.sink {
            Some(door) => again(UNDO_WITHIN, || door.heal()).await,
            None => Ok(()),
        };
        outbox.and(sink).and(self.clock.as_ref().map_or(Ok(()), |clock| clock.set("+0")))
    }

    pub(in crate::torture) async fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    /// Ends its process in order, and has another one started after a while. False if there was none.
    pub(in crate::torture) async fn stop(&self, after: Duration, log: &Log) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        let Some(process) = &mut state.process else { return Ok(false) };
        if process.terminate().is_err() {
            // It has ended by itself in this moment, and the watcher says of what.
            return Ok(false);
        }
        let (mut deadline, mut slept) = (Instant::now() + STOP_WITHIN, state.asleep.is_some());
        loop {
            // It may come by a fail point on its way out, where it stands still.
            if self.rest_or_resume(&mut state, log) {
                (deadline, slept) = (Instant::now() + STOP_WITHIN, true);
            }
            let Some(process) = &mut state.process else { return Ok(false) };
            match process.exit_status()? {
                None if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                None => {
                    log.find(format!("{} still runs {STOP_WITHIN:?} after it was told to stop", self.name));
                    break;
                }
                Some(status) => {
                    // Who sleeps for longer than it may drain says so. One that has told nothing yet does not listen yet, either.
                    let fits = match status.code() {
                        Some(code) => code == 0 || (code == 1 && slept),
                        None => was_ended(status) && length(&self.history(&state)) == 0,
                    };
                    if !fits {
                        self.take_note(&mut state, status, log);
                    }
                    break;
                }
            }
        }
        state.vacate(after);
        Ok(true)
    }

    /// SIGKILL. The next process starts after a while, and ends the fault, which begins with this process's id. False if there
    /// was none to be killed, or it has ended by itself in this moment.
    pub(in crate::torture) async fn kill(
        &self,
        after: Duration,
        fault: impl FnOnce(u32) -> Fault,
        log: &Log,
    ) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        let Some(process) = &mut state.process else { return Ok(false) };
        if process.exit_status()?.is_some() {
            // The watcher sees that, too, and says of what.
            return Ok(false);
        }
        let fault = fault(process.id());
        let killed = process.kill();
        let Some(status) = process.exit_status()? else { return killed.map(|()| false) };
        if was_killed(status) {
            state.ended_by = Some(fault);
        } else {
            self.take_note(&mut state, status, log);
        }
        state.vacate(after);
        Ok(was_killed(status))
    }

    /// The next process gets another configuration.
    pub(in crate::torture) async fn change(&self) {
        self.draw_settings(&mut *self.state.lock().await);
    }

    /// Gives it another configuration, to be read again at once.
    pub(in crate::torture) async fn reconfigure(&self, folder: &Path, common: &Common) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        self.draw_settings(&mut state);
        self.write(&state, folder, common)?;
        let Some(process) = &mut state.process else { return Ok(false) };
        let read = process.lines_with(READ_AGAIN).len();
        if process.hang_up().is_err() {
            return Ok(false);
        }
        state.told_to_read = Some(read);
        Ok(true)
    }

    /// The limit for its files so that the one at the sink can grow by no more than so many bytes. Nothing if there is no
    /// process, or if that cannot be: the limit is one for all its files, and its history must not have a hole.
    pub(in crate::torture) async fn limit(&self, file: &Path, room: u64) -> Option<u64> {
        const HISTORY_GROWS: u64 = 4 << 20;
        let state = self.state.lock().await;
        state.process.as_ref()?;
        let most = length(file) + room;
        (most >= length(&self.history(&state)) + HISTORY_GROWS).then_some(most)
    }

    /// Its process can write no file further than this, until it is freed.
    pub(in crate::torture) async fn fill(&self, limit: u64) {
        if let Some(process) = &self.state.lock().await.process {
            // It may have ended by itself in this moment.
            let _ = process.limit_files(Some(limit));
        }
    }

    /// It can write as much as it likes.
    pub(in crate::torture) async fn free(&self) {
        if let Some(process) = &self.state.lock().await.process {
            // One that has ended meanwhile has no limit to be lifted.
            let _ = process.limit_files(None);
        }
    }

    fn draw_settings(&self, state: &mut State) {
        state.changes += 1;
        state.settings = Settings::draw(&mut random(&self.plan, "settings", self.number, state.changes));
    }

    fn write(&self, state: &State, folder: &Path, common: &Common) -> Result<(), Error> {
        let Settings { batch_messages, in_flight, poll_idle_ms } = state.settings;
        let text = format!(
            "name = \"{}\"\ndrain = \"{DRAIN_MS}ms\"\n[database]\ndsn = {}\n[lease]\nttl = \"{}s\"\n[http]\nlisten = \"off\"\n\
             [relays.{NAME}]\nlanes = {LANES}\nbatch_messages = {batch_messages}\nin_flight = {in_flight}\n\
             poll_idle = \"{poll_idle_ms}ms\"\nacknowledge_idle = \"1s\"\nretry_cap = \"1s\"\nsource = {}\nsink = {}\n\
             [relays.{NAME}.retry]\nfirst = \"100ms\"\ncap = \"1s\"\nattempts = 1000000\nage = \"720h\"\n",
            self.name,
            toml_text(&self.ways.dsn(&common.database, RELAY)),
            TTL.as_secs(),
            self.plan.source.section(),
            common.destination.section(&self.ways)
        );
        let path = folder.join(format!("{}.toml", self.name));
        std::fs::write(&path, text).map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))
    }

    fn begin(&self, state: &mut State, folder: &Path, common: &Common) -> Result<(), Error> {
        state.starts += 1;
        let name = format!("{}-{}", self.name, state.starts);
        self.write(state, folder, common)?;
        // Past its limit a file is to be an error that the process can see (`fill`), and no signal.
        let mut command = Command::new("env");
        command.arg("--ignore-signal=XFSZ").arg(executable()?);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        let random = |purpose| random(&self.plan, purpose, self.number, state.starts);
        let aims = aims::draw(&self.plan, self.lasting, &mut random("aims"));
        command
            .current_dir(folder)
            .env_remove("RUST_LOG")
            .env("HOME", folder)
            .arg("run")
            .arg("--config")
            .arg(folder.join(format!("{}.toml", self.name)))
            .env("PGBATON_HISTORY", self.history(state))
            .env("PGBATON_FAULT", aims)
            .env("PGBATON_FAULT_OFF", fail_points_off(folder));
        if let Some(clock) = &self.clock {
            command.envs(clock.environment(true));
        }
        state.sleeps = random("sleeps");
        state.heard = 0;
        state.told_to_read = None;
        state.process = Some(Process::start(&name, folder, command)?);
        state.ended_by = None;
        Ok(())
    }

    /// Of the process that is there.
    fn history(&self, state: &State) -> PathBuf {
        self.plan.folder.join(format!("{}-{}.history", self.name, state.starts))
    }

    fn look(&self, state: &mut State, folder: &Path, common: &Common) -> Result<(), Error> {
        let Some(process) = &mut state.process else {
            let due = *self.starts.borrow() && Instant::now() >= state.due;
            return if due { self.begin(state, folder, common) } else { Ok(()) };
        };
        let Some(status) = process.exit_status()? else {
            self.rest_or_resume(state, &common.log);
            return Ok(());
        };
        self.take_note(state, status, &common.log);
        state.vacate(millis(&mut random(&self.plan, "restarts", self.number, state.starts), 0, 2_000));
        Ok(())
    }

    /// Of an end that nobody here brought about: only one at a fail point is part of the plan.
    fn take_note(&self, state: &mut State, status: ExitStatus, log: &Log) {
        let Some(process) = &state.process else { return };
        let (pid, said) = (process.id(), last_lines(process.stderr()));
        let news = state.news();
        match news.iter().find_map(|told| told.strip_prefix("kill ")).filter(|_| was_killed(status)) {
            Some(point) => state.ended_by = Some(log.begin_at("kill_at_point", &self.name, point, pid)),
            None => log.find(format!("{} ended by itself ({status}); the end of its log:\n{said}", self.name)),
        }
    }

    /// If it has stopped itself, it stands still for a while, and is resumed. True for as long as it does.
    fn rest_or_resume(&self, state: &mut State, log: &Log) -> bool {
        let Some(process) = state.process.as_mut().filter(|_| !state.paused) else { return false };
        let points = *self.points.borrow();
        if let Some((_, until)) = &state.asleep {
            if points && Instant::now() < *until {
                return true;
            }
            // It may have been killed meanwhile. With this the fault is over.
            let _ = process.resume();
            state.asleep = None;
            return true;
        }
        if !process.is_stopped() {
            return false;
        }
        let pid = process.id();
        let news = state.news();
        let point = news.last().map_or("?", |told| told.strip_prefix("stop ").unwrap_or(told));
        let random = &mut state.sleeps;
        let asleep = if random.random_bool(0.4) {
            millis(random, 10, TTL_MS * 3 / 4)
        } else {
            millis(random, TTL_MS, TTL_MS * 4)
        };
        state.asleep = Some((log.begin_at("stop_at_point", &self.name, point, pid), Instant::now() + asleep));
        true
    }
}

/// A stream for each purpose, place and number, so that what happens first changes nothing.
fn random(plan: &Plan, purpose: &str, place: u32, number: u32) -> StdRng {
    plan.random(purpose, (u64::from(place) << 32) | u64::from(number))
}

/// Of a file; nothing if there is none.
fn length(path: &Path) -> u64 {
    path.metadata().map(|found| found.len()).unwrap_or_default()
}

fn was_ended(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::TERM.as_raw())
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::KILL.as_raw())
}

impl State {
    pub(in crate::torture) fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Its process has ended; the next one starts after a while.
    fn vacate(&mut self, after: Duration) {
        self.process = None;
        self.asleep = None;
        self.due = Instant::now() + after;
    }

    /// Whether its process is between two configurations: it was told to read it again, or has, and has not joined since.
    pub(in crate::torture) fn reloads(&self) -> bool {
        let (Some(process), Some(before)) = (&self.process, self.told_to_read) else { return false };
        let log = process.lines_with("");
        let last = |text: &str| log.iter().rposition(|line| line.contains(text));
        log.iter().filter(|line| line.contains(READ_AGAIN)).count() <= before || last(STARTS_AGAIN) > last("joined")
    }

    /// What its process has told of fail points since this was last asked.
    fn news(&mut self) -> Vec<String> {
        let told = self.process.as_ref().map(aims::told).unwrap_or_default();
        let news = told.get(self.heard..).unwrap_or_default().to_vec();
        self.heard = told.len();
        news
    }

    pub(in crate::torture) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }
}

/// Starts, resumes and starts again, for as long as the run lasts.
pub(super) async fn watch_over(post: Arc<Post>, folder: PathBuf, common: Arc<Common>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let mut state = post.state.lock().await;
        if let Err(error) = post.look(&mut state, &folder, &common) {
            common.log.find(error.to_string());
            state.due = Instant::now() + Duration::from_secs(1);
        }
    }
}
