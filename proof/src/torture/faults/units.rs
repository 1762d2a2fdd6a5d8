//! What kinds of faults there are, how often each is drawn, and what it has for itself meanwhile.

use crate::Error;
use crate::torture::plan::SinkKind;
use crate::torture::stage::Stage;

/// A kind of fault. The table below says what it is, and `carry_out` what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::torture) enum Kind {
    Kill,
    StopShort,
    StopLong,
    StopAtPoint,
    KillAtPoint,
    CleanStop,
    Reconfigure,
    RollingRestart,
    ReplicaClock,
    Cut,
    Stall,
    BlackHole,
    Refuse,
    Terminate,
    Cancel,
    RestartFast,
    RestartImmediate,
    FailOverSync,
    FailOverAsync,
    FailOverWakes,
    Slots,
    DiskFull,
    ServerClock,
    Snapshot,
    RowsLocked,
    Split,
    SinkOutage,
    SinkSlow,
    SinkFails,
    SinkCut,
    SinkHangs,
    Redrive,
    Pause,
}

impl Kind {
    pub(super) const fn is_fail_over(self) -> bool {
        matches!(self, Kind::FailOverSync | Kind::FailOverAsync | Kind::FailOverWakes)
    }
}

/// A kind with all that is known of it.
pub(in crate::torture) struct Unit {
    pub(super) kind: Kind,
    pub(in crate::torture) name: &'static str,
    /// One line for a person.
    pub(in crate::torture) about: &'static str,
    /// How often it is drawn, among all.
    pub(super) weight: u32,
    /// What it needs for itself.
    pub(super) needs: &'static [Thing],
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Unit {
    /// Whether it ends connections of everybody, so that nothing that takes minutes survives it.
    pub(super) fn shakes_the_server(&self) -> bool {
        self.needs.iter().any(|thing| matches!(thing, Thing::Server | Thing::Backends))
    }
}

/// What one fault has for itself while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Thing {
    /// The process of the target.
    Process,
    /// All processes.
    Fleet,
    /// The way of the target to the outbox.
    Way,
    /// The ways of all to the outbox.
    Ways,
    /// The way of the target to the sink.
    SinkWay,
    /// The ways of all to the sink.
    SinkWays,
    /// The sink itself.
    Sink,
    /// The primary.
    Server,
    /// Its backends.
    Backends,
    /// A replica's clock.
    Clock,
    ServerClock,
    Snapshot,
    Rows,
    Lanes,
    Dead,
    Pauses,
}

const fn unit(kind: Kind, name: &'static str, about: &'static str, weight: u32, needs: &'static [Thing]) -> Unit {
    Unit { kind, name, about, weight, needs }
}

/// All of them. Those of weight 0 are not drawn here: they come with the replicas' processes.
pub(in crate::torture) const UNITS: &[Unit] = {
    use Thing::{
        Backends, Clock, Dead, Fleet, Lanes, Pauses, Process, Rows, Server, ServerClock, Sink, SinkWay, SinkWays,
        Snapshot, Way, Ways,
    };
    // Who has the server ends its backends, too.
    const SERVER: &[Thing] = &[Server, Backends];
    &[
        unit(Kind::Kill, "kill", "SIGKILL to a replica", 10, &[Process]),
        unit(Kind::StopShort, "stop_short", "SIGSTOP to a replica for less than its lease", 9, &[Process]),
        unit(Kind::StopLong, "stop_long", "SIGSTOP to a replica for more than its lease", 8, &[Process]),
        unit(Kind::StopAtPoint, "stop_at_point", "a replica stops itself at a fail point, and is resumed", 0, &[]),
        unit(Kind::KillAtPoint, "kill_at_point", "a replica kills itself at a fail point", 0, &[]),
        unit(Kind::CleanStop, "clean_stop", "SIGTERM to a replica, which gives back its lanes", 6, &[Process]),
        unit(Kind::Reconfigure, "reconfigure", "a replica gets a changed configuration and SIGHUP", 3, &[Process]),
        unit(
            Kind::RollingRestart,
            "rolling_restart",
            "all replicas but the first are replaced in turn, with changed configurations; it reads its own again",
            1,
            &[Fleet],
        ),
        unit(Kind::ReplicaClock, "replica_clock", "a replica's wall clock jumps, and back", 4, &[Clock]),
        unit(Kind::Cut, "cut", "a replica's connections to the outbox are reset", 8, &[Way]),
        unit(Kind::Stall, "stall", "what a replica and the outbox tell each other waits, one way", 6, &[Way]),
        unit(
            Kind::BlackHole,
            "black_hole",
            "what a replica and the outbox tell each other is swallowed, without an end",
            6,
            &[Way],
        ),
        unit(Kind::Refuse, "refuse", "a replica's connections to the outbox are closed and refused", 4, &[Way]),
        unit(Kind::Terminate, "terminate", "backends of the relay, or of everybody, are killed", 5, &[Backends]),
        unit(Kind::Cancel, "cancel", "statements of the relay, or of everybody, are cancelled", 6, &[Backends]),
        unit(Kind::RestartFast, "restart_fast", "the server is stopped in order and started again", 2, SERVER),
        unit(Kind::RestartImmediate, "restart_immediate", "the server crashes and is started again", 3, SERVER),
        unit(
            Kind::FailOverSync,
            "fail_over_sync",
            "the primary crashes; its synchronous standby takes its place",
            1,
            SERVER,
        ),
        unit(
            Kind::FailOverAsync,
            "fail_over_async",
            "the primary crashes; a standby that lacks commits takes its place",
            1,
            SERVER,
        ),
        unit(
            Kind::FailOverWakes,
            "fail_over_wakes",
            "the primary crashes, its standby takes its place, and the old one comes back beside it",
            1,
            &[Server, Backends, Fleet, Ways],
        ),
        unit(Kind::Slots, "slots", "all connection slots are taken by others", 2, SERVER),
        unit(Kind::DiskFull, "disk_full", "nothing more fits on the server's volume", 2, SERVER),
        unit(Kind::ServerClock, "server_clock", "the server's wall clock jumps, and back", 2, &[ServerClock]),
        unit(Kind::Snapshot, "snapshot", "a snapshot is held for long", 2, &[Snapshot]),
        unit(
            Kind::RowsLocked,
            "rows_locked",
            "pending rows of an adopted table are locked by its owner for more than a lease",
            3,
            &[Rows],
        ),
        unit(Kind::Split, "split", "the relay's lanes are doubled", 1, &[Lanes]),
        unit(Kind::SinkOutage, "sink_outage", "the sink is down", 3, &[Sink, SinkWays]),
        unit(Kind::SinkSlow, "sink_slow", "the sink is slow", 3, &[Sink]),
        unit(
            Kind::SinkFails,
            "sink_fails",
            "the sink answers with errors, for messages that it has taken and for others, or takes all and says nothing",
            5,
            &[Sink],
        ),
        unit(
            Kind::SinkCut,
            "sink_cut",
            "a replica's connections to the sink are reset, with answers on their way",
            5,
            &[SinkWay],
        ),
        unit(Kind::SinkHangs, "sink_hangs", "the sink says nothing", 4, &[SinkWay]),
        unit(Kind::Redrive, "redrive", "an operator has dead messages tried again", 4, &[Dead]),
        unit(
            Kind::Pause,
            "pause",
            "an operator pauses the relay, a lane, a key or topics, and resumes it",
            3,
            &[Pauses],
        ),
    ]
};

/// The kinds of these names; all if there are none.
pub(in crate::torture) fn chosen(names: &[String]) -> Result<Vec<&'static Unit>, Error> {
    if names.is_empty() {
        return Ok(UNITS.iter().collect());
    }
    let find = |name: &String| {
        let found = UNITS.iter().find(|unit| unit.name == name);
        found.ok_or_else(|| Error::new(format!("there is no fault {name:?}: --list-faults shows those there are")))
    };
    names.iter().map(find).collect()
}

/// One line each.
pub(in crate::torture) fn list() -> String {
    let line = |unit: &Unit| format!("{:<18} {}\n", unit.name, unit.about);
    UNITS.iter().map(line).collect()
}

/// Why a kind cannot be done here at all.
pub(in crate::torture) fn impossible(unit: &Unit, stage: &Stage) -> Option<String> {
    match unit.kind {
        Kind::DiskFull => stage.cannot.disk.clone(),
        Kind::ReplicaClock | Kind::ServerClock => stage.cannot.clock.clone(),
        Kind::RowsLocked if !stage.plan.source.is_adopted() => {
            Some("pgbaton's own outbox has no other owner".to_owned())
        }
        Kind::Redrive if stage.plan.sink != SinkKind::Http => Some("only webhooks are rejected here".to_owned()),
        Kind::SinkOutage => None,
        _ if stage.plan.sink == SinkKind::File
            && unit.needs.iter().any(|thing| matches!(thing, Thing::Sink | Thing::SinkWay)) =>
        {
            Some("a file has nobody at its other end".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_told_apart_and_found() {
        let names: HashSet<&str> = UNITS.iter().map(|unit| unit.name).collect();
        let kinds: HashSet<Kind> = UNITS.iter().map(|unit| unit.kind).collect();
        assert_eq!((names.len(), kinds.len()), (UNITS.len(), UNITS.len()));
        assert!(UNITS.iter().all(|unit| list().contains(unit.about)));
        assert_eq!(chosen(&[]).unwrap().len(), UNITS.len());
        assert_eq!(chosen(&["kill".to_owned()]).unwrap()[0].name, "kill");
        assert!(chosen(&["kil".to_owned()]).is_err());
    }
}
