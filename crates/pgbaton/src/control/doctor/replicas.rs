//! Which replicas run, which relays they run, and whether each lane has an owner and moves: by two looks, since whether a beat moves, and
//! whether a lane stays without an owner, is not seen in one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::{Finding, Level, ends, some, span, unknown};
use crate::config::{Examined, ExaminedRelay};
use crate::connection::{Access, Database, Parameter};
use crate::control::relays::{self, RelayStatus};
use crate::control::{self, LaneStatus, ReplicaStatus, Status};
use crate::error::Error;
use crate::relay::Pace;
use crate::source::{Behind, SourceSpec};
use crate::sql;

/// It is watched for a ttl, but not for longer than this.
const LONGEST: Duration = Duration::from_secs(30);

/// Two looks at everything.
struct Watched {
    before: Status,
    after: Status,
    /// The time between them.
    time: Duration,
    /// The longest of those that take part.
    ttl: Duration,
}

impl Watched {
    /// Those whose beats have moved, and those that have come.
    fn alive(&self) -> Vec<&ReplicaStatus> {
        self.after.replicas.iter().filter(|replica| self.moved(replica)).collect()
    }

    fn silent(&self) -> Vec<&ReplicaStatus> {
        self.after.replicas.iter().filter(|replica| !self.moved(replica)).collect()
    }

    fn moved(&self, replica: &ReplicaStatus) -> bool {
        !self.before.replicas.iter().any(|before| before.id == replica.id && before.beat == replica.beat)
    }

    /// Those that live and take lanes of this relay.
    fn runners(&self, relay: &str) -> Vec<&ReplicaStatus> {
        self.alive().into_iter().filter(|replica| replica.relays.iter().any(|name| name == relay)).collect()
    }

    /// Lanes that have had no owner in both looks, of relays that somebody runs.
    fn unowned(&self) -> Vec<&LaneStatus> {
        let same = |lane: &LaneStatus, before: &LaneStatus| {
            (lane.relay.as_str(), lane.lane, lane.epoch) == (&before.relay, before.lane, before.epoch)
                && before.replica.is_none()
        };
        let free =
            |lane: &&LaneStatus| lane.replica.is_none() && self.before.lanes.iter().any(|before| same(lane, before));
        self.after.lanes.iter().filter(free).filter(|lane| !self.runners(&lane.relay).is_empty()).collect()
    }

    /// Relays of which some replica has two lanes more than another one, in both looks.
    fn unbalanced(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for relay in names(&self.after) {
            let runners = self.runners(relay);
            let held = |status: &Status, id: &str| {
                status.lanes.iter().filter(|lane| lane.relay == relay && lane.replica.as_deref() == Some(id)).count()
            };
            let uneven = |status: &Status| {
                let held = runners.iter().map(|replica| held(status, &replica.id));
                held.clone().max().unwrap_or_default() > held.min().unwrap_or_default() + 1
            };
            if uneven(&self.before) && uneven(&self.after) {
                let shares =
                    runners.iter().map(|replica| format!("{} has {}", replica.name, held(&self.after, &replica.id)));
                found.push((relay.to_owned(), shares.collect()));
            }
        }
        found
    }

    /// Whether nothing is left to wait for.
    fn is_settled(&self) -> bool {
        self.silent().is_empty() && self.unowned().is_empty() && self.unbalanced().is_empty()
    }
}

/// The relays that have lanes.
fn names(status: &Status) -> BTreeSet<&str> {
    status.lanes.iter().map(|lane| lane.relay.as_str()).collect()
}

/// What is asked of one relay beside the two looks.
struct Queue {
    /// Lanes of the outbox that have not passed messages: for how long the oldest has been there, in seconds.
    lanes: BTreeMap<i32, f64>,
    /// What is pending of an adopted table.
    pending: Option<Behind>,
    /// A lane that moves has written its position since.
    stuck_after: Duration,
}

/// `replicas`, `relays` and `lanes`.
pub(super) async fn look(examined: &Examined) -> Vec<Finding> {
    let looked = async {
        let watched = watch(&examined.database, examined.ttl).await?;
        Ok::<_, Error>((watched, relays::list(&examined.database).await?))
    };
    let (watched, registered) = match looked.await {
        Ok(looked) => looked,
        Err(error) => return ["replicas", "relays", "lanes"].map(|check| unknown(check, &error)).into(),
    };
    let mut found = judge_replicas(&watched, examined.ttl);
    found.extend(judge_relays(&watched, &registered, &examined.relays));
    let mut lanes = judge_owners(&watched);
    for relay in &registered {
        if watched.runners(&relay.name).is_empty() {
            continue; // told above
        }
        match queue(examined, relay).await {
            Ok(queue) => lanes.extend(judge_moving(&watched, relay, &queue)),
            Err(error) => {
                lanes.push(Finding::unknown("lanes", &format!("whether lanes of relay {} move", relay.name), &error));
            }
        }
    }
    if lanes.is_empty() {
        lanes.push(Finding::ok("lanes", "each that somebody runs has an owner, and none stands still"));
    }
    found.extend(lanes);
    found
}

/// Looks until everything has moved, or a ttl is over.
async fn watch(database: &Database, ttl: Duration) -> Result<Watched, Error> {
    let before = control::status(database).await?;
    let of = |replica: &ReplicaStatus| Duration::from_millis(u64::try_from(replica.ttl_ms).unwrap_or_default());
    let ttl = before.replicas.iter().map(of).max().unwrap_or_default().max(ttl);
    let begun = Instant::now();
    let mut watched = Watched { after: control::status(database).await?, before, time: Duration::ZERO, ttl };
    // One that is a little late is no dead one.
    let longest = (ttl + ttl / 4).min(LONGEST);
    while !watched.is_settled() && begun.elapsed() < longest {
        tokio::time::sleep((ttl / 10).min(Duration::from_secs(1))).await;
        watched.after = control::status(database).await?;
    }
    watched.time = begun.elapsed();
    Ok(watched)
}

/// What a relay that is run has left to do.
async fn queue(examined: &Examined, relay: &RelayStatus) -> Result<Queue, Error> {
    let configured = examined.relays.iter().find(|configured| configured.spec.name.as_str() == relay.name);
    let idle =
        configured.map_or_else(|| Pace::default().acknowledge_idle, |configured| configured.spec.pace.acknowledge_idle);
    let mut queue = Queue { lanes: BTreeMap::new(), pending: None, stuck_after: (idle * 3).max(examined.ttl * 3) };
    if relay.table.is_some() {
        if let Some(ExaminedRelay { spec, .. }) = configured
            && let SourceSpec::Table(table) = &spec.source
        {
            queue.pending = Some(ends::pending(&examined.database, &spec.name, table).await?);
        }
        return Ok(queue);
    }
    let parameters: [Parameter<'_>; 1] = [(&relay.name, Type::TEXT)];
    let connection = examined.database.connect().await?;
    let [rows] = connection.pipeline(Access::Look, [(sql::LANES_BEHIND, &parameters)]).await?;
    for row in &rows {
        queue.lanes.insert(row.try_get("lane")?, row.try_get("oldest")?);
    }
    Ok(queue)
}

fn judge_replicas(watched: &Watched, ttl: Duration) -> Vec<Finding> {
    const CHECK: &str = "replicas";
    let (mut found, alive) = (Vec::new(), watched.alive());
    for replica in watched.silent() {
        let ReplicaStatus { name, id, ttl_ms, .. } = replica;
        let held = watched.after.lanes.iter().filter(|lane| lane.replica.as_deref() == Some(id)).count();
        let time = span(watched.time.as_secs_f64());
        if i128::from(*ttl_ms) > i128::try_from(watched.time.as_millis()).unwrap_or_default() {
            let what = format!(
                "not known: whether replica {name} ({id}) runs, because its beat has not moved for {time} and its ttl is longer ({ttl_ms} ms)"
            );
            found.push(Finding::warning(CHECK, what, "Look again later, or look at its process"));
            continue;
        }
        let what = format!(
            "replica {name} ({id}) has not renewed its lease for {time}: it was killed, or stands still. It holds {held} lane(s)"
        );
        let remedy = "Look at its process. Another replica expires it after a ttl; where none runs, start one";
        found.push(Finding::warning(CHECK, what, remedy));
    }
    for replica in alive.iter().filter(|replica| u128::try_from(replica.ttl_ms).ok() != Some(ttl.as_millis())) {
        let what = format!(
            "replica {} has lease.ttl = {} ms, and this configuration {} ms",
            replica.name,
            replica.ttl_ms,
            ttl.as_millis()
        );
        found.push(Finding::warning(
            CHECK,
            what,
            "Use the same on all replicas, and restart those that have another one",
        ));
    }
    let versions: BTreeSet<&str> = alive.iter().map(|replica| replica.version.as_str()).collect();
    if versions.len() > 1 {
        let what =
            format!("replicas of different versions run: {}", versions.iter().copied().collect::<Vec<_>>().join(", "));
        found.push(Finding::note(
            CHECK,
            what,
            "Do not leave a roll-out half done: an old one may not start again once the schema is newer",
        ));
    }
    match alive.as_slice() {
        [] => found.push(Finding::note(
            CHECK,
            "no replica runs",
            "`pgbaton run` starts one; run two at least, on different machines",
        )),
        [one] => found.push(Finding::note(
            CHECK,
            format!("one replica runs ({}): nobody takes over when it ends", one.name),
            "Run two at least, on different machines",
        )),
        many if found.is_empty() => {
            let names: Vec<String> = many.iter().map(|replica| replica.name.clone()).collect();
            found.push(Finding::ok(CHECK, format!("{} run: {}", many.len(), some(&names))));
        }
        _ => {}
    }
    found
}

fn judge_relays(watched: &Watched, registered: &[RelayStatus], configured: &[ExaminedRelay]) -> Vec<Finding> {
    const CHECK: &str = "relays";
    let mut found = Vec::new();
    for RelayStatus { name, table, lanes, lanes_now, .. } in registered {
        let ours = configured.iter().map(|relay| &relay.spec).find(|spec| spec.name.as_str() == name);
        if watched.runners(name).is_empty() {
            let kept = if table.is_some() { "its rows stay pending" } else { "the outbox keeps its messages" };
            let remedy = match ours {
                Some(_) => "Start a replica with this configuration".to_owned(),
                None => format!("Run it, or drop it: `pgbaton relays drop {name} --yes`, as the schema's owner"),
            };
            found.push(Finding::warning(CHECK, format!("nobody runs relay {name}: {kept}"), remedy));
        }
        if *lanes_now < i64::from(*lanes) {
            let what = format!("relay {name} has {lanes_now} of {lanes} lanes: they are being split");
            found.push(Finding::note(
                CHECK,
                what,
                "Nothing, unless it stays so: a lane is split once its owner has opened it at the sink",
            ));
        }
        let Some(spec) = ours else { continue };
        let source_is_table = matches!(spec.source, SourceSpec::Table(_));
        if source_is_table != table.is_some() {
            let what = format!(
                "relay {name} was registered for {}, and this configuration has another source",
                table.as_deref().unwrap_or("the outbox")
            );
            found.push(Finding::problem(CHECK, what, "Correct the configuration, give the relay another name, or drop the one that is registered (`pgbaton relays drop`)"));
        }
        if spec.lanes != *lanes {
            let what = format!(
                "relay {name} has {lanes} lanes, and this configuration says {}: what is registered counts",
                spec.lanes
            );
            found.push(Finding::note(CHECK, what, format!("Write `lanes = {lanes}`")));
        }
    }
    for name in configured.iter().map(|relay| relay.spec.name.as_str()) {
        if registered.iter().any(|relay| relay.name == name) {
            continue;
        }
        let what = format!("relay {name} of this configuration is not registered");
        if watched.alive().is_empty() {
            found.push(Finding::note(
                CHECK,
                format!("{what}: no replica has had it yet"),
                "`pgbaton run` with this configuration registers it",
            ));
        } else {
            let remedy = "Have the replicas read this configuration (SIGHUP), and see their logs";
            found.push(Finding::warning(
                CHECK,
                format!("{what}, although replicas run: they have another configuration, or could not register it"),
                remedy,
            ));
        }
    }
    if found.is_empty() {
        let names: Vec<String> = registered.iter().map(|relay| relay.name.clone()).collect();
        found.push(Finding::ok(CHECK, format!("registered and run: {}", some(&names))));
    }
    found
}

/// Lanes by their numbers, for people.
fn numbers<'a>(lanes: impl Iterator<Item = &'a LaneStatus>) -> String {
    some(&lanes.map(|lane| lane.lane.to_string()).collect::<Vec<_>>())
}

/// Lanes without an owner, and shares that are not fair.
fn judge_owners(watched: &Watched) -> Vec<Finding> {
    const CHECK: &str = "lanes";
    let (mut found, unowned, time) = (Vec::new(), watched.unowned(), span(watched.time.as_secs_f64()));
    let whole = watched.time >= watched.ttl;
    for relay in unowned.iter().map(|lane| lane.relay.as_str()).collect::<BTreeSet<_>>() {
        let lanes = numbers(unowned.iter().copied().filter(|lane| lane.relay == relay));
        let runners: Vec<String> = watched.runners(relay).iter().map(|replica| replica.name.clone()).collect();
        let what = format!(
            "no replica has taken lane(s) {lanes} of relay {relay} for {time}, though {} run(s) it",
            some(&runners)
        );
        let remedy = "See the replicas' logs: after a fail-over lanes are left alone for a ttl; else their database connections may not let a claim through";
        found.push(Finding::new(CHECK, if whole { Level::Problem } else { Level::Warning }, what, remedy));
    }
    for (relay, shares) in watched.unbalanced() {
        let what = format!("lanes of relay {relay} are not shared out evenly, for {time}: {}", some(&shares));
        found.push(Finding::warning(
            CHECK,
            what,
            "See the log of the one with more: a lane is given back once what is in flight has finished",
        ));
    }
    found
}

/// Lanes that stand still although there is something for them.
fn judge_moving(watched: &Watched, relay: &RelayStatus, queue: &Queue) -> Vec<Finding> {
    const CHECK: &str = "lanes";
    const SEE: &str =
        "See `sink`, `source` and the owner's log: a lane that is held or refused says why, once a minute";
    let (name, late) = (relay.name.as_str(), queue.stuck_after.as_secs_f64());
    let of_relay = || watched.after.lanes.iter().filter(|lane| lane.relay == name);
    let stands = |lane: &LaneStatus| lane.position_age_seconds.is_none_or(|age| age >= late);
    let mut found = Vec::new();
    let stuck = |lane: &&LaneStatus| {
        lane.replica.is_some() && stands(lane) && queue.lanes.get(&lane.lane).is_some_and(|oldest| *oldest >= late)
    };
    let stuck: Vec<&LaneStatus> = of_relay().filter(stuck).collect();
    let oldest = stuck.iter().filter_map(|lane| queue.lanes.get(&lane.lane)).copied().fold(0.0, f64::max);
    if !stuck.is_empty() {
        let owners: BTreeSet<String> = stuck.iter().filter_map(|lane| lane.replica_name.clone()).collect();
        let what = format!(
            "lane(s) {} of relay {name} stand still: messages for them have been there for up to {}, and no position was written for {} (owned by {})",
            numbers(stuck.iter().copied()),
            span(oldest),
            span(late),
            some(&owners.into_iter().collect::<Vec<_>>())
        );
        found.push(Finding::problem(CHECK, what, SEE));
    }
    if let Some(Behind { messages, oldest }) = queue.pending {
        let old = oldest.is_some_and(|oldest| oldest >= queue.stuck_after);
        let aside = u64::try_from(relay.parked).unwrap_or_default();
        if messages > 0 && aside == 0 && old && of_relay().all(stands) {
            let oldest = span(oldest.unwrap_or_default().as_secs_f64());
            let what = format!(
                "relay {name} stands still: {messages} rows are pending (counted up to 10,000), the oldest for {oldest}, and none was marked for {}",
                span(late)
            );
            found.push(Finding::problem(CHECK, what, SEE));
        } else if messages > 0 && (aside > 0 || oldest.is_none()) {
            let what = format!(
                "relay {name}: {messages} rows are pending (counted up to 10,000), {aside} of them set aside; whether others wait for long is not known"
            );
            found.push(Finding::note(CHECK, what, "Give `source` its `created_at`, or see `set_aside`"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::RelaySpec;
    use crate::sink::discard::Discard;

    fn replica(name: &str, beat: i64) -> ReplicaStatus {
        let (id, version, relays) = (format!("id-{name}"), "1.0.0".to_owned(), vec!["orders".to_owned()]);
        ReplicaStatus { id, name: name.to_owned(), version, relays, beat, ttl_ms: 5_000, age_seconds: 60.0 }
    }

    fn lane(number: i32, owner: Option<&str>) -> LaneStatus {
        LaneStatus {
            relay: "orders".into(),
            lane: number,
            lanes: 4,
            epoch: 1,
            replica: owner.map(|name| format!("id-{name}")),
            replica_name: owner.map(str::to_owned),
            batch: Some(1),
            passed: Some(1),
            position_age_seconds: Some(50.0),
        }
    }

    fn status(replicas: Vec<ReplicaStatus>, owners: [Option<&str>; 4]) -> Status {
        let lanes = owners.into_iter().zip(0..).map(|(owner, number)| lane(number, owner)).collect();
        Status { last_number: 9, replicas, lanes }
    }

    /// Two replicas whose beats move, unless they are named.
    fn watched(silent: &[&str], owners: [Option<&str>; 4]) -> Watched {
        let of = |beat| ["a", "b"].map(|name| replica(name, if silent.contains(&name) { 1 } else { beat })).into();
        let ttl = Duration::from_secs(5);
        Watched { before: status(of(1), owners), after: status(of(2), owners), time: ttl, ttl }
    }

    const SHARED: [Option<&str>; 4] = [Some("a"), Some("b"), Some("a"), Some("b")];

    fn registered() -> RelayStatus {
        RelayStatus {
            name: "orders".into(),
            table: None,
            lanes: 4,
            lanes_now: 4,
            owned: 4,
            replicas: 2,
            passed: Some(1),
            parked: 0,
            age_seconds: 60.0,
        }
    }

    fn configured(name: &str) -> ExaminedRelay {
        let spec = RelaySpec { lanes: 4, ..RelaySpec::new(name, Discard).unwrap() };
        ExaminedRelay { spec, goes_to: crate::config::Destination::Asked }
    }

    fn levels(found: &[Finding]) -> Vec<Level> {
        found.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn all_that_moves_is_good() {
        let watched = watched(&[], SHARED);
        assert!(watched.is_settled());
        assert_eq!(levels(&judge_replicas(&watched, watched.ttl)), [Level::Ok]);
        assert_eq!(levels(&judge_relays(&watched, &[registered()], &[configured("orders")])), [Level::Ok]);
        assert!(judge_owners(&watched).is_empty());
    }

    #[test]
    fn a_beat_that_does_not_move_is_told() {
        let watched = watched(&["b"], SHARED);
        assert!(!watched.is_settled());
        let found = judge_replicas(&watched, watched.ttl);
        assert_eq!(levels(&found), [Level::Warning, Level::Note]);
        assert!(found[0].what.contains("replica b") && found[0].what.contains("2 lane(s)"), "{}", found[0].what);
        // Not for long enough to know.
        let short = Watched { time: Duration::from_secs(2), ..watched };
        assert!(judge_replicas(&short, short.ttl)[0].what.starts_with("not known"));
    }

    #[test]
    fn replicas_that_differ_are_told() {
        let mut watched = watched(&[], SHARED);
        watched.after.replicas[1].version = "1.1.0".into();
        watched.after.replicas[1].ttl_ms = 9_000;
        assert_eq!(levels(&judge_replicas(&watched, watched.ttl)), [Level::Warning, Level::Note]);
    }

    #[test]
    fn lanes_without_an_owner_are_told() {
        let nobodys = watched(&[], [Some("a"), None, Some("b"), None]);
        let found = judge_owners(&nobodys);
        assert_eq!(levels(&found), [Level::Problem]);
        assert!(found[0].what.contains("lane(s) 1, 3 of relay orders"), "{}", found[0].what);
        // It changed hands meanwhile.
        let mut moved = watched(&[], [Some("a"), None, Some("b"), None]);
        moved.before.lanes.iter_mut().for_each(|lane| lane.epoch = 0);
        assert!(judge_owners(&moved).is_empty());
        // Nobody runs it: another finding.
        assert!(judge_owners(&watched(&["a", "b"], [None; 4])).is_empty());
    }

    #[test]
    fn shares_that_are_not_fair_are_told() {
        let found = judge_owners(&watched(&[], [Some("a"), Some("a"), Some("a"), Some("b")]));
        assert_eq!(levels(&found), [Level::Warning]);
        assert!(found[0].what.contains("a has 3, b has 1"), "{}", found[0].what);
        assert!(judge_owners(&watched(&[], SHARED)).is_empty());
    }

    #[test]
    fn relays_that_nobody_runs_are_told() {
        let dead = watched(&["a", "b"], SHARED);
        let found = judge_relays(&dead, &[registered()], &[]);
        assert_eq!(levels(&found), [Level::Warning]);
        assert!(found[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("relays drop orders")), "{found:?}");
        let found = judge_relays(&watched(&[], SHARED), &[registered()], &[configured("orders"), configured("more")]);
        assert_eq!(levels(&found), [Level::Warning], "replicas run without it");
        let nobody = Watched {
            before: status(vec![], [None; 4]),
            after: status(vec![], [None; 4]),
            time: Duration::ZERO,
            ttl: Duration::from_secs(5),
        };
        assert_eq!(levels(&judge_relays(&nobody, &[], &[configured("more")])), [Level::Note]);
        assert_eq!(levels(&judge_replicas(&nobody, nobody.ttl)), [Level::Note]);
    }

    #[test]
    fn another_number_of_lanes_is_worth_a_note() {
        let split = RelayStatus { lanes: 8, ..registered() };
        assert_eq!(
            levels(&judge_relays(&watched(&[], SHARED), &[split], &[configured("orders")])),
            [Level::Note, Level::Note]
        );
        let table = RelayStatus { table: Some("app.outbox".into()), ..registered() };
        assert_eq!(levels(&judge_relays(&watched(&[], SHARED), &[table], &[configured("orders")])), [Level::Problem]);
    }

    #[test]
    fn a_lane_stands_still_if_something_waits_for_it() {
        let judged = |oldest: &[(i32, f64)], late| {
            let queue = Queue {
                lanes: oldest.iter().copied().collect(),
                pending: None,
                stuck_after: Duration::from_secs(late),
            };
            judge_moving(&watched(&[], SHARED), &registered(), &queue)
        };
        let found = judged(&[(2, 400.0)], 30);
        assert_eq!(levels(&found), [Level::Problem]);
        assert!(
            found[0].what.contains("lane(s) 2 of relay orders") && found[0].what.contains("7 min"),
            "{}",
            found[0].what
        );
        assert!(judged(&[], 30).is_empty(), "nothing waits");
        assert!(judged(&[(2, 10.0)], 30).is_empty(), "what waits is new");
        assert!(judged(&[(2, 400.0)], 60).is_empty(), "a position was written");
    }

    #[test]
    fn rows_that_stay_pending_are_told() {
        let judged = |messages, oldest: Option<u64>, parked| {
            let pending = Some(Behind { messages, oldest: oldest.map(Duration::from_secs) });
            let queue = Queue { lanes: BTreeMap::new(), pending, stuck_after: Duration::from_secs(30) };
            levels(&judge_moving(&watched(&[], SHARED), &RelayStatus { parked, ..registered() }, &queue))
        };
        assert_eq!(judged(5, Some(400), 0), [Level::Problem]);
        assert_eq!(judged(5, Some(400), 2), [Level::Note], "they may be those");
        assert_eq!(judged(5, None, 0), [Level::Note]);
        assert!(judged(0, Some(0), 0).is_empty());
        assert!(judged(5, Some(1), 0).is_empty());
    }
}
