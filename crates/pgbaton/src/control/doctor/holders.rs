//! Who holds back vacuum, or keeps a segment of the outbox: transactions that stay open, prepared ones, standbys, replication slots.
//!
//! The texts of statements are not asked for: they may hold what a message does.

use std::time::Duration;

use super::{Finding, Level, size, some, span};
use crate::connection::{Access, Database};
use crate::error::Error;
use crate::sql;

/// Transactions of a server that have begun since: so many hold back more than a busy hour.
const MANY: i64 = 10_000_000;

/// A session with an open transaction, or one of which no more is known than what it holds.
struct Open {
    pid: i32,
    role: String,
    application: String,
    state: Option<String>,
    /// Seconds; `None`: this role may not know.
    age: Option<f64>,
    /// How many transactions have begun since the oldest that it holds back.
    behind: Option<i64>,
    /// It holds a lock on the outbox.
    on_outbox: bool,
}

impl Open {
    fn who(&self) -> String {
        let application =
            if self.application.is_empty() { String::new() } else { format!(", application {:?}", self.application) };
        format!("session {} (role {}{application})", self.pid, self.role)
    }

    fn holds(&self) -> String {
        match (self.on_outbox, self.behind) {
            (true, _) => " It uses the outbox: what it uses of it cannot be emptied meanwhile.".to_owned(),
            (false, Some(behind)) => format!(" Vacuum keeps all that {behind} transactions have left dead since."),
            (false, None) => String::new(),
        }
    }
}

/// A prepared transaction.
struct Prepared {
    gid: String,
    role: String,
    age: f64,
    behind: i64,
}

/// Those that are open for at least so long.
pub(super) async fn transactions(database: &Database, long: Duration) -> Result<Vec<Finding>, Error> {
    let connection = database.connect().await?;
    let statements = [(sql::OPEN_TRANSACTIONS, &[][..]), (sql::PREPARED_TRANSACTIONS, &[])];
    let [open, prepared] = connection.pipeline(Access::Look, statements).await?;
    let open = open.iter().map(|row| {
        Ok(Open {
            pid: row.try_get("pid")?,
            role: row.try_get("role")?,
            application: row.try_get::<_, Option<String>>("application")?.unwrap_or_default(),
            state: row.try_get("state")?,
            age: row.try_get("age")?,
            behind: row.try_get("behind")?,
            on_outbox: row.try_get("on_outbox")?,
        })
    });
    let prepared = prepared.iter().map(|row| {
        Ok(Prepared {
            gid: row.try_get("gid")?,
            role: row.try_get("role")?,
            age: row.try_get("age")?,
            behind: row.try_get("behind")?,
        })
    });
    let (open, prepared) = (open.collect::<Result<Vec<_>, Error>>()?, prepared.collect::<Result<Vec<_>, Error>>()?);
    Ok(judge_transactions(&open, &prepared, long.as_secs_f64()))
}

fn judge_transactions(open: &[Open], prepared: &[Prepared], long: f64) -> Vec<Finding> {
    const CHECK: &str = "transactions";
    let mut found = Vec::new();
    for open in open {
        let Some(age) = open.age.filter(|age| *age >= long) else { continue };
        let what = format!(
            "{} has had a transaction open for {}{}.{}",
            open.who(),
            span(age),
            open.state.as_deref().map(|state| format!(", and is {state}")).unwrap_or_default(),
            open.holds()
        );
        found.push(Finding::warning(
            CHECK,
            what,
            format!("Have it end, or: select pg_terminate_backend({})", open.pid),
        ));
    }
    for Prepared { gid, role, age, behind } in prepared.iter().filter(|prepared| prepared.age >= long) {
        let what = format!(
            "transaction {gid:?} of role {role} has been prepared for {} and is neither committed nor rolled back: it keeps the segments that it wrote to, and \
             vacuum keeps all that {behind} transactions have left dead since",
            span(*age)
        );
        let gid = sql::literal(gid);
        let gid = gid.trim_start();
        found.push(Finding::warning(
            CHECK,
            what,
            format!("Ask its transaction manager; then: commit prepared {gid}, or rollback prepared {gid}"),
        ));
    }
    let hidden: Vec<&Open> = open.iter().filter(|open| open.age.is_none()).collect();
    if let Some(oldest) = hidden.iter().max_by_key(|open| open.behind) {
        let since = oldest.behind.map(|behind| format!(", of {behind} transactions ago")).unwrap_or_default();
        let what = format!(
            "not known: for how long {} session(s) of other roles have had transactions open, because this role may not see it. What holds the oldest is \
             {}{since}.{}",
            hidden.len(),
            oldest.who(),
            oldest.holds()
        );
        let level = if oldest.behind.is_some_and(|behind| behind >= MANY) { Level::Warning } else { Level::Note };
        found.push(Finding::new(
            CHECK,
            level,
            what,
            "grant pg_read_all_stats to the role of database.dsn, or run this with one that has it",
        ));
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, format!("none has been open for {}", span(long))));
    }
    found
}

/// A replication slot.
struct Slot {
    name: String,
    kind: String,
    active: bool,
    temporary: bool,
    /// What it was to keep is gone.
    lost: bool,
    behind: Option<i64>,
    /// Of the write-ahead log.
    bytes: Option<i64>,
}

/// A standby without a slot that reports what its queries need.
struct Standby {
    pid: i32,
    application: String,
    behind: i64,
}

/// What replication slots and standbys hold back.
pub(super) async fn replication(database: &Database) -> Result<Vec<Finding>, Error> {
    let connection = database.connect().await?;
    let [slots, standbys] = connection.pipeline(Access::Look, [(sql::SLOTS, &[][..]), (sql::STANDBYS, &[])]).await?;
    let slots = slots.iter().map(|row| {
        Ok(Slot {
            name: row.try_get("name")?,
            kind: row.try_get("kind")?,
            active: row.try_get("active")?,
            temporary: row.try_get("temporary")?,
            lost: row.try_get::<_, Option<bool>>("lost")?.unwrap_or_default(),
            behind: row.try_get("behind")?,
            bytes: row.try_get("bytes")?,
        })
    });
    let standbys = standbys.iter().map(|row| {
        Ok(Standby {
            pid: row.try_get("pid")?,
            application: row.try_get("application")?,
            behind: row.try_get("behind")?,
        })
    });
    let (slots, standbys) = (slots.collect::<Result<Vec<_>, Error>>()?, standbys.collect::<Result<Vec<_>, Error>>()?);
    Ok(judge_replication(&slots, &standbys))
}

fn judge_replication(slots: &[Slot], standbys: &[Standby]) -> Vec<Finding> {
    const CHECK: &str = "slots";
    let mut found = Vec::new();
    for Slot { name, kind, active, temporary, lost, behind, bytes } in slots {
        let held = [
            bytes.map(|bytes| format!("{} of the write-ahead log", size(bytes))),
            behind.map(|behind| format!("what {behind} transactions have left dead since")),
        ];
        let held: Vec<String> = held.into_iter().flatten().collect();
        let drop = format!("select pg_drop_replication_slot({})", sql::literal(name).trim_start());
        if *lost {
            let what = format!(
                "replication slot {name} ({kind}) is lost: what it was to keep is gone, and nobody can go on from it"
            );
            found.push(Finding::note(CHECK, what, drop));
        } else if !active && !temporary {
            let kept = if held.is_empty() { "nothing yet".to_owned() } else { held.join(", and ") };
            let what = format!(
                "replication slot {name} ({kind}) is used by nobody, and the server keeps for it {kept}: the disk fills, whatever pgbaton does"
            );
            found.push(Finding::warning(CHECK, what, format!("Start whoever reads it, or, if nobody will: {drop}")));
        } else if behind.is_some_and(|behind| behind >= MANY) {
            let what = format!(
                "replication slot {name} ({kind}) is used and far behind: the server keeps for it {}",
                held.join(", and ")
            );
            found.push(Finding::warning(
                CHECK,
                what,
                "See whether its reader gets on, and for long queries on the standby (hot_standby_feedback)",
            ));
        }
    }
    for Standby { pid, application, behind } in standbys.iter().filter(|standby| standby.behind >= MANY) {
        let what = format!(
            "standby {application:?} (session {pid}) holds back what {behind} transactions have left dead, by hot_standby_feedback"
        );
        found.push(Finding::warning(CHECK, what, "End the long queries on that standby"));
    }
    if found.is_empty() {
        let names: Vec<String> = slots.iter().map(|slot| slot.name.clone()).collect();
        let what = if names.is_empty() {
            "there is no replication slot".to_owned()
        } else {
            format!("in use: {}", some(&names))
        };
        found.push(Finding::ok(CHECK, what));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(age: Option<f64>, behind: Option<i64>) -> Open {
        let state = age.map(|_| "idle in transaction".to_owned());
        Open { pid: 7, role: "app".into(), application: "report".into(), state, age, behind, on_outbox: false }
    }

    #[test]
    fn long_transactions_are_told_with_who_they_are() {
        let found = judge_transactions(&[open(Some(700.0), Some(12)), open(Some(5.0), None)], &[], 300.0);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].level, Level::Warning);
        for word in ["session 7", "role app", "\"report\"", "12 min", "idle in transaction", "12 transactions"] {
            assert!(found[0].what.contains(word), "{}", found[0].what);
        }
        let short = judge_transactions(&[open(Some(5.0), None)], &[], 300.0);
        assert_eq!((short.len(), short[0].level), (1, Level::Ok));
    }

    #[test]
    fn what_a_role_may_not_see_is_said() {
        let found = judge_transactions(&[open(None, Some(3)), open(None, None)], &[], 300.0);
        assert_eq!((found.len(), found[0].level), (1, Level::Note));
        assert!(found[0].what.starts_with("not known: for how long 2 session(s)"), "{}", found[0].what);
        assert_eq!(judge_transactions(&[open(None, Some(MANY))], &[], 300.0)[0].level, Level::Warning);
    }

    #[test]
    fn a_prepared_transaction_is_quoted_for_a_statement() {
        let prepared = Prepared { gid: "it's".into(), role: "app".into(), age: 400.0, behind: 9 };
        let found = judge_transactions(&[], &[prepared], 300.0);
        assert!(
            found[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("rollback prepared 'it''s'")),
            "{found:?}"
        );
    }

    #[test]
    fn slots_that_nobody_uses_are_told() {
        let slot = |active, lost, behind| Slot {
            name: "s".into(),
            kind: "logical".into(),
            active,
            temporary: false,
            lost,
            behind,
            bytes: Some(5 << 20),
        };
        let level = |slot: Slot| judge_replication(&[slot], &[])[0].level;
        assert_eq!(level(slot(true, false, Some(5))), Level::Ok);
        assert_eq!(level(slot(false, false, Some(5))), Level::Warning);
        assert_eq!(level(slot(false, true, None)), Level::Note);
        assert_eq!(level(slot(true, false, Some(MANY))), Level::Warning);
        assert!(judge_replication(&[slot(false, false, None)], &[])[0].what.contains("5 MiB"));
        let standby = Standby { pid: 3, application: "b".into(), behind: MANY };
        assert_eq!(judge_replication(&[], &[standby])[0].level, Level::Warning);
    }
}
