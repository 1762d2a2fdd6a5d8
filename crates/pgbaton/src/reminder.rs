//! How often the log is told of what lasts. Pure: takes `now`.

use std::time::Duration;

use crate::lease::BootInstant;

/// Something that lasts: told when it begins, once a minute as long as it stays the same, and when it becomes something else.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reminder(Option<(BootInstant, String)>);

impl Reminder {
    const EVERY: Duration = Duration::from_secs(60);

    /// Whether to tell of it now; `what` it is by its words or code. Whoever is answered yes tells.
    pub(crate) fn is_due(&mut self, what: &str, now: BootInstant) -> bool {
        let due = self.0.as_ref().is_none_or(|(told, of)| of != what || now.since(*told) >= Self::EVERY);
        if due {
            self.0 = Some((now, what.to_owned()));
        }
        due
    }

    /// It is over. Gives whether it was told of.
    pub(crate) fn end(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once_a_minute() {
        let at = |seconds| BootInstant::from_boot(Duration::from_secs(seconds));
        let mut reminder = Reminder::default();
        assert!(!reminder.end());
        let told = [("a", 0), ("a", 59), ("a", 60), ("b", 61), ("b", 119), ("a", 120)];
        let due: Vec<bool> = told.map(|(what, seconds)| reminder.is_due(what, at(seconds))).into();
        assert_eq!(due, [true, false, true, true, false, true]);
        assert!(reminder.end());
        assert!(reminder.is_due("a", at(121)));
    }
}
