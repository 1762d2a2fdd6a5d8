//! Fail points: places where a test stops or kills this process. Only with the feature `faults`; a shipped build has none.
//!
//! `PGBATON_FAULT=sink.checked:stop:3` stops the process (SIGSTOP) the third time it comes by `sink.checked`; `kill`
//! instead of `stop` kills it (SIGKILL). Several are separated by commas.
//!
//! | point                | where |
//! |----------------------|-------|
//! | `lane.fenced`        | the sink has opened a lane and taken its fence; the lane's position is not read yet |
//! | `lane.before_append` | a batch is about to be handed to the sink |
//! | `sink.checked`       | the sink has found the lease to run, and writes next: `file`, `postgres`, and `http` for each piece |
//! | `sink.mid_batch`     | some of a batch is written: `http` before each message but the first, `file` before the flush. An inbox takes a batch in one statement |
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
mod enabled {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use crate::clock;

    struct Fault {
        name: String,
        signal: rustix::process::Signal,
        at: u64,
        passed: AtomicU64,
    }

    static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| parse(&std::env::var("PGBATON_FAULT").unwrap_or_default()));

    fn parse(text: &str) -> Vec<Fault> {
        text.split(',')
            .filter_map(|fault| {
                let mut parts = fault.split(':');
                let name = parts.next().filter(|name| !name.is_empty())?.to_owned();
                let signal = match parts.next() {
                    Some("kill") => rustix::process::Signal::KILL,
                    _ => rustix::process::Signal::STOP,
                };
                let at = parts.next().and_then(|at| at.parse().ok()).unwrap_or(1);
                Some(Fault { name, signal, at, passed: AtomicU64::new(0) })
            })
            .collect()
    }

    pub(crate) fn point(name: &'static str) {
        for fault in FAULTS.iter().filter(|fault| fault.name == name) {
            if fault.passed.fetch_add(1, Ordering::Relaxed) + 1 == fault.at {
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
}
