//! How often a relay tries a message that its sink does not take: the section `retry` of a relay, and `dead`.

use super::section::{Problems, Section};
use crate::retry::{Policy, WhenDead};

pub(super) fn read(relay: &mut Section<'_>, problems: &Problems) -> Policy {
    let (path, default) = (relay.path().to_owned(), Policy::default());
    let mut section = relay.section("retry");
    let attempts = section.integer("attempts", default.attempts, 1, 1_000_000);
    let (first, cap) = (section.duration("first", default.first), section.duration("cap", default.cap));
    let age = section.duration("age", default.age);
    section.finish();
    if first > cap {
        problems.add(&format!("{path}.retry.cap"), &format!("is {cap:?}, and shorter than `first`, {first:?}"));
    }
    let when_dead = match relay.string("dead").as_deref() {
        None | Some("hold") => WhenDead::Hold,
        Some("skip") => WhenDead::Skip,
        Some(_) => {
            problems.add(&format!("{path}.dead"), "is neither \"hold\" nor \"skip\"");
            WhenDead::Hold
        }
    };
    Policy { attempts, first, cap, age, when_dead }
}
