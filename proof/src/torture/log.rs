//! What was done to the run, and what was found besides what the history says: told as it happens, and counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use checker::history::{Event, Phase};
use serde::Serialize;

use super::book::Book;
use crate::Error;

/// How often a kind of fault was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    /// It took place, to its end.
    pub(super) done: u32,
    /// It could not be done at that moment: something stood in its way, or there was nobody to hit.
    pub(super) not_then: u32,
    /// It was begun and failed: this program's trouble, not the relay's.
    pub(super) failed: u32,
    /// The longest of those that were drawn.
    pub(super) longest_ms: u64,
}

/// Counts and findings.
pub(super) struct Log {
    pub(super) book: Arc<Book>,
    next: AtomicU32,
    counts: Mutex<BTreeMap<&'static str, Count>>,
    /// How often something was done at a fail point.
    at_points: Mutex<BTreeMap<String, u32>>,
    /// Why some could not be done.
    failures: Mutex<BTreeMap<&'static str, String>>,
    findings: Mutex<Vec<String>>,
    /// What some brought about that others of their kind did not.
    effects: Mutex<BTreeMap<&'static str, u32>>,
}

/// A fault under way; over when this is dropped.
pub(super) struct Fault {
    log: Arc<Book>,
    number: u32,
    kind: &'static str,
    target: String,
    pid: Option<u32>,
}

impl Log {
    pub(super) fn new(book: Arc<Book>) -> Log {
        let (counts, failures, findings) = (Mutex::default(), Mutex::default(), Mutex::default());
        Log {
            book,
            next: AtomicU32::new(1),
            counts,
            at_points: Mutex::default(),
            failures,
            findings,
            effects: Mutex::default(),
        }
    }

    /// Tells that a fault begins that nobody has drawn: it counts at once.
    pub(super) fn begin(&self, kind: &'static str, target: &str, pid: Option<u32>) -> Fault {
        self.count(kind, |count| count.done += 1);
        self.begin_drawn(kind, target, pid)
    }

    /// Tells that a fault begins. It counts when it has taken place, by [`Log::took_place`].
    pub(super) fn begin_drawn(&self, kind: &'static str, target: &str, pid: Option<u32>) -> Fault {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let fault = Fault { log: Arc::clone(&self.book), number, kind, target: target.to_owned(), pid };
        fault.tell(Phase::Begin);
        fault
    }

    /// The same, of what a process did to itself at a fail point.
    pub(super) fn begin_at(&self, kind: &'static str, target: &str, point: &str, pid: u32) -> Fault {
        *lock(&self.at_points).entry(format!("{kind} {point}")).or_default() += 1;
        self.begin(kind, &format!("{target} at {point}"), Some(pid))
    }

    pub(super) fn at_points(&self) -> BTreeMap<String, u32> {
        lock(&self.at_points).clone()
    }

    pub(super) fn took_place(&self, kind: &'static str, length: Duration) {
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.count(kind, |count| {
            count.done += 1;
            count.longest_ms = count.longest_ms.max(length);
        });
    }

    /// A fault has brought this about.
    pub(super) fn effect(&self, what: &'static str) {
        *lock(&self.effects).entry(what).or_default() += 1;
    }

    pub(super) fn effects(&self) -> BTreeMap<&'static str, u32> {
        lock(&self.effects).clone()
    }

    pub(super) fn not_then(&self, kind: &'static str) {
        self.count(kind, |count| count.not_then += 1);
    }

    pub(super) fn failed(&self, kind: &'static str, why: String) {
        self.count(kind, |count| count.failed += 1);
        lock(&self.failures).insert(kind, why);
    }

    /// Something that must not be, whatever the history says.
    pub(super) fn find(&self, finding: String) {
        eprintln!("found: {finding}");
        lock(&self.findings).push(finding);
    }

    /// A failure of this program after which the run shows less than it should.
    pub(super) fn find_failure<T>(&self, what: &str, done: Result<T, Error>) -> Option<T> {
        done.map_err(|error| self.find(format!("{what}: {error}"))).ok()
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, Count> {
        lock(&self.counts).clone()
    }

    pub(super) fn failures(&self) -> BTreeMap<&'static str, String> {
        lock(&self.failures).clone()
    }

    pub(super) fn findings(&self) -> Vec<String> {
        lock(&self.findings).clone()
    }

    /// Faults that took place.
    pub(super) fn done(&self) -> usize {
        lock(&self.counts).values().map(|count| count.done as usize).sum()
    }

    fn count(&self, kind: &'static str, f: impl FnOnce(&mut Count)) {
        f(lock(&self.counts).entry(kind).or_default());
    }
}

/// What a task that died has left behind is still worth reading.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fault {
    /// Tells that it is over.
    pub(super) fn end(self) {
        drop(self);
    }

    fn tell(&self, phase: Phase) {
        let (kind, target) = (self.kind.to_owned(), self.target.clone());
        self.log.tell(Event::Fault { number: self.number, kind, target, pid: self.pid, phase });
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        self.tell(Phase::End);
    }
}
