//! Messages that were set aside: how many, how many are dead, and whether those that are due are tried.

use std::collections::HashMap;

use tokio_postgres::types::Type;

use super::{Finding, span};
use crate::connection::{Access, Database, Parameter};
use crate::control::relays;
use crate::error::Error;
use crate::sql;

const CHECK: &str = "set_aside";
/// `parked_counts` counts no further.
const COUNTED: i64 = 10_000;
/// Seconds: an attempt that is due is made within a few.
const LATE: f64 = 120.0;

/// What a relay has set aside.
struct Aside {
    relay: String,
    /// Whether somebody runs it.
    run: bool,
    waiting: i64,
    dead: i64,
    /// Seconds since the oldest dead one is dead.
    dead_for: Option<f64>,
    /// Seconds since the next attempt is due; below zero: until it is.
    due_for: Option<f64>,
}

pub(super) async fn look(database: &Database) -> Result<Vec<Finding>, Error> {
    let run: HashMap<String, bool> =
        relays::list(database).await?.into_iter().map(|relay| (relay.name, relay.replicas > 0)).collect();
    let names: Vec<&str> = run.keys().map(String::as_str).collect();
    let of_relays: [Parameter<'_>; 1] = [(&names, Type::TEXT_ARRAY)];
    let statements = [(sql::PARKED_COUNTS, &of_relays[..]), (sql::PARKED_OLDEST, &of_relays)];
    let [counts, oldest] = database.connect().await?.pipeline(Access::Look, statements).await?;
    let mut all = Vec::new();
    let mut times: HashMap<String, [Option<f64>; 2]> = HashMap::new();
    for row in &oldest {
        times.insert(row.try_get("relay")?, [row.try_get("dead")?, row.try_get("due")?]);
    }
    for row in &counts {
        let relay: String = row.try_get("relay")?;
        let [dead_for, due_for] = times.get(&relay).copied().unwrap_or_default();
        let run = run.get(&relay).copied().unwrap_or_default();
        all.push(Aside { run, relay, waiting: row.try_get("parked")?, dead: row.try_get("dead")?, dead_for, due_for });
    }
    all.sort_by(|a, b| a.relay.cmp(&b.relay));
    Ok(judge(&all))
}

fn judge(all: &[Aside]) -> Vec<Finding> {
    let mut found = Vec::new();
    let number = |count: i64| if count >= COUNTED { format!("{COUNTED} or more") } else { count.to_string() };
    for Aside { relay, run, waiting, dead, dead_for, due_for } in all {
        if let Some(for_) = dead_for {
            let what = format!(
                "relay {relay} has {} dead message(s), the oldest for {}: a person has to decide, and with `dead = \"hold\"` their keys wait",
                number(*dead),
                span(*for_)
            );
            let remedy = format!(
                "`pgbaton dead list --relay {relay}` says why; then `pgbaton dead retry {relay}` or `pgbaton dead discard {relay}`"
            );
            found.push(Finding::warning(CHECK, what, remedy));
        }
        match due_for.filter(|late| *run && *late >= LATE) {
            Some(late) => {
                let what = format!(
                    "relay {relay} has set {} message(s) aside, and an attempt has been due for {}",
                    number(*waiting),
                    span(late)
                );
                found.push(Finding::warning(
                    CHECK,
                    what,
                    "See `lanes` and `sink`, and the replica's log: its lane may be held",
                ));
            }
            None if *waiting > 0 => {
                let what = format!(
                    "relay {relay} has set {} message(s) aside, which are tried again or wait behind one of their key",
                    number(*waiting)
                );
                found.push(Finding::note(
                    CHECK,
                    what,
                    format!(
                        "`pgbaton messages list --relay {relay}` shows them; if there are more and more, see the sink"
                    ),
                ));
            }
            None => {}
        }
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, "nothing"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn aside() -> Aside {
        Aside { relay: "orders".into(), run: true, waiting: 0, dead: 0, dead_for: None, due_for: None }
    }

    #[test]
    fn what_is_dead_or_late_is_told() {
        let levels = |aside: Aside| judge(&[aside]).into_iter().map(|found| found.level).collect::<Vec<_>>();
        assert_eq!(levels(aside()), [Level::Ok]);
        assert_eq!(levels(Aside { dead: 2, dead_for: Some(90_000.0), ..aside() }), [Level::Warning]);
        assert_eq!(levels(Aside { waiting: 2, due_for: Some(-30.0), ..aside() }), [Level::Note]);
        assert_eq!(levels(Aside { waiting: 2, due_for: Some(900.0), ..aside() }), [Level::Warning]);
        assert_eq!(
            levels(Aside { waiting: 2, due_for: Some(900.0), run: false, ..aside() }),
            [Level::Note],
            "nobody could"
        );
        let found = judge(&[Aside { dead: COUNTED, dead_for: Some(10.0), ..aside() }]);
        assert!(found[0].what.contains("10000 or more"), "{}", found[0].what);
    }
}
