//! How often a relay tries a message that its sink does not take: the section `retry` of a relay, and `dead`.

use super::section::{Problems, Section};
use crate::retry::{Policy, WhenDead};

pub(super) fn read(relay: &mut Section<'_>, adopts: bool, problems: &Problems) -> Policy {
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
    let (dead_topic, dead_keep) = (relay.string("dead_topic"), relay.optional_duration("dead_keep"));
    for (name, given) in [("dead_topic", dead_topic.is_some()), ("dead_keep", dead_keep.is_some())] {
        if given && adopts {
            problems.add(
                &format!("{path}.{name}"),
                "is for the outbox: what is dead of an adopted table stays in the table",
            );
        }
    }
    if dead_topic.as_deref() == Some("") {
        problems.add(&format!("{path}.dead_topic"), "is empty");
    }
    Policy { attempts, first, cap, age, when_dead, dead_topic, dead_keep }
}
