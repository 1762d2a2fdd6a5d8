//! What the demo says while it runs, on standard error: events that stay, and below them one line that changes at a
//! terminal, or a plain line each second elsewhere.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a plain line is written where there is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(1);
/// Taken where the terminal does not tell.
const USUAL_WIDTH: u16 = 100;

/// How an event is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// A step of the demo.
    Step,
    /// Something done to a replica.
    Harm,
    /// How the others dealt with it.
    Good,
}

/// The terminal, or what stands in for it.
pub(super) struct Screen {
    started: Instant,
    terminal: bool,
    colours: bool,
    /// The line that changes, as it was last written; empty if there is none.
    line: RefCell<String>,
    plain_at: Cell<Option<Instant>>,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let terminal = std::io::stderr().is_terminal();
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Screen { started: Instant::now(), terminal, colours, line: RefCell::default(), plain_at: Cell::new(None) }
    }

    /// Since the demo began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// A line that stays.
    pub(super) fn event(&self, tone: Tone, text: &str) {
        let colour = match tone {
            Tone::Step => "",
            Tone::Harm => "\x1b[31m",
            Tone::Good => "\x1b[32m",
        };
        let (begin, end) = if self.colours && tone != Tone::Step { (colour, "\x1b[0m") } else { ("", "") };
        self.put(&format!("{}{:6.1} s  {begin}{text}{end}\n{}", self.erase(), self.seconds(), self.line.borrow()));
    }

    /// The line that changes.
    pub(super) fn progress(&self, text: &str) {
        if self.terminal {
            let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(USUAL_WIDTH, |size| size.ws_col);
            // A line that reaches the edge would wrap, and could not be erased.
            let shown: String = text.chars().take(usize::from(width.max(2)) - 1).collect();
            self.put(&format!("{}{shown}", self.erase()));
            self.line.replace(shown);
        } else if self.plain_at.get().is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            self.plain_at.set(Some(Instant::now()));
            self.put(&format!("{:6.1} s  {text}\n", self.seconds()));
        }
    }

    /// Ends the line that changes.
    pub(super) fn clear(&self) {
        self.put(self.erase());
        self.line.take();
    }

    fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }

    fn erase(&self) -> &'static str {
        if self.line.borrow().is_empty() { "" } else { "\r\x1b[2K" }
    }

    /// Nobody may be listening any more; the demo goes on all the same.
    fn put(&self, text: &str) {
        let mut out = std::io::stderr().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A number with its thousands apart.
pub(super) fn grouped(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A bar of `width` characters of which this share is full.
pub(super) fn bar(done: u64, of: u64, width: usize) -> String {
    let full = usize::try_from(done.min(of).saturating_mul(width as u64) / of.max(1)).unwrap_or(width);
    format!("[{}{}]", "#".repeat(full), ".".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let grouped = [0u64, 999, 1_000, 100_000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "100,000", "1,234,567"]);
    }

    #[test]
    fn a_bar_never_runs_over() {
        assert_eq!([bar(0, 10, 4), bar(5, 10, 4), bar(11, 10, 4)], ["[....]", "[##..]", "[####]"]);
    }
}
