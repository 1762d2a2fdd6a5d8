//! Fail points: places where a test stops or kills this process. Only with the feature `faults`; a shipped build has none.
//!
//! `PGBATON_FAULT=sink.checked:stop:3` stops the process (SIGSTOP) the third time it comes by `sink.checked`; `kill`
//! instead of `stop` kills it (SIGKILL). Several are separated by commas. Each is told on the standard error before it is done.
//! None is done any more once the file exists that `PGBATON_FAULT_OFF` names.
//!
//! | point                | where |
//! |----------------------|-------|
//! | `lane.fenced`        | the sink has opened a lane and taken its fence; the lane's position is not read yet |
//! | `lane.before_append` | a batch is about to be handed to the sink |
//! | `sink.checked`       | the sink has found the lease to run, and writes next: `file`, `postgres`, and `http` for each piece |
//! | `sink.mid_batch`     | some of a batch is written: `http` before each message but the first, `file` half-way. An inbox takes a batch in one statement |
//! | `lane.appended`      | the sink has answered |
//! | `lane.delivered`     | a batch is at the sink, and its position is about to be told to whoever writes them |
//! | `acknowledge.locked` | the transaction that writes positions has its locks, and has written nothing |

/// Passes a fail point.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) fn point(_name: &'static str) {}

#[cfg(feature = "faults")]
pub(crate) use enabled::point;
#[cfg(feature = "faults")]
pub use enabled::{NAMES, check};

#[cfg(feature = "faults")]
mod enabled {
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::Signal;

    use crate::clock;

    /// All there are.
    pub const NAMES: [&str; 7] = [
        "lane.fenced",
        "lane.before_append",
        "sink.checked",
        "sink.mid_batch",
        "lane.appended",
        "lane.delivered",
        "acknowledge.locked",
    ];

    #[derive(Debug)]
    struct Fault {
        name: String,
        verb: &'static str,
        signal: Signal,
        at: u64,
        passed: AtomicU64,
    }

    static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
        let text = std::env::var("PGBATON_FAULT").unwrap_or_default();
        parse(&text).unwrap_or_else(|why| refuse(&why))
    });
    static OFF: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("PGBATON_FAULT_OFF").map(PathBuf::from));

    /// Ends the process if `PGBATON_FAULT` asks for what is not there: a fault that never comes would pass for one survived.
    pub fn check() {
        LazyLock::force(&FAULTS);
    }

    fn refuse(why: &str) -> ! {
        say(&format!("pgbaton: {why}\n"));
        std::process::exit(2)
    }

    /// In one write, so that nothing comes in between.
    fn say(line: &str) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn parse(text: &str) -> Result<Vec<Fault>, String> {
        text.split(',').filter(|fault| !fault.is_empty()).map(parse_one).collect()
    }

    fn parse_one(text: &str) -> Result<Fault, String> {
        let wrong = |what: &str| format!("PGBATON_FAULT: {text:?} {what}");
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        if !NAMES.contains(&name) {
            return Err(wrong("names no fail point"));
        }
        let (verb, signal) = match parts.next() {
            Some("stop") => ("stop", Signal::STOP),
            Some("kill") => ("kill", Signal::KILL),
            _ => return Err(wrong("neither stops nor kills")),
        };
        let at = match parts.next().map(str::parse) {
            None => 1,
            Some(Ok(at)) if at > 0 && parts.next().is_none() => at,
            _ => return Err(wrong("does not end with a number")),
        };
        Ok(Fault { name: name.to_owned(), verb, signal, at, passed: AtomicU64::new(0) })
    }

    pub(crate) fn point(name: &'static str) {
        if !NAMES.contains(&name) {
            refuse(&format!("{name} is passed and is not among the names of fail points"));
        }
        for fault in FAULTS.iter().filter(|fault| fault.name == name) {
            if fault.passed.fetch_add(1, Ordering::Relaxed) + 1 == fault.at
                && !OFF.as_ref().is_some_and(|off| off.exists())
            {
                say(&format!("fail point: {} {name}\n", fault.verb));
                let _ = rustix::process::kill_process(rustix::process::getpid(), fault.signal);
                stand_still();
            }
        }
    }

    /// A stop that is sent to the process reaches one thread after the other: without this, the one that came by goes on for a
    /// while. Returns as soon as it has been stopped and goes on.
    fn stand_still() {
        const LOOK: Duration = Duration::from_millis(1);
        for _ in 0..50 {
            let before = clock::now();
            std::thread::sleep(LOOK);
            if clock::now().since(before) > 20 * LOOK {
                return;
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_not_there_is_refused() {
            assert!(parse("").unwrap().is_empty());
            let faults = parse("lane.fenced:stop,sink.checked:kill:3").unwrap();
            assert_eq!(
                faults.iter().map(|fault| (fault.verb, fault.at)).collect::<Vec<_>>(),
                [("stop", 1), ("kill", 3)]
            );
            for wrong in
                ["lane.fence:stop:1", "lane.fenced", "lane.fenced:halt:1", "lane.fenced:stop:x", "lane.fenced:stop:0"]
            {
                assert!(parse(wrong).is_err(), "{wrong}");
            }
        }
    }
}
