//! What the connecting role may do, against what `pgbaton grants` gives it: too little stops a replica, too much lets it do what reading
//! without gaps rests on.

use tokio_postgres::types::Type;

use super::{Finding, some};
use crate::connection::{Access, Database, Parameter};
use crate::error::{Error, Kind};
use crate::{migrate, sql};

const CHECK: &str = "role";

/// Connections of one replica, and those that each of its relays adds: without the sinks'.
const OF_A_REPLICA: usize = 3;
const OF_A_RELAY: usize = 2;

/// One right of those that `pgbaton grants` gives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    kind: &'static str,
    name: String,
    privilege: String,
    column: Option<String>,
}

/// Reads the rights out of the statements that grant them, so that they stand in one place. `None`: one is not understood.
fn rights(grants: &str) -> Option<Vec<Right>> {
    let mut rights = Vec::new();
    for statement in grants.split(';').map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")) {
        if statement.is_empty() {
            continue;
        }
        let (granted, _) = statement.strip_prefix("grant ")?.rsplit_once(" to ")?;
        let (privileges, on) = granted.split_once(" on ")?;
        let (kind, names) = objects(on);
        for (privilege, columns) in items(privileges).into_iter().map(split_columns) {
            for name in items(names) {
                // Of a function its arguments are left out.
                let name = split_columns(name).0.trim_start_matches("pgbaton.").to_owned();
                let right = |column: Option<&str>| {
                    let (name, privilege, column) = (name.clone(), privilege.to_owned(), column.map(str::to_owned));
                    Right { kind, name, privilege, column }
                };
                match columns {
                    Some(columns) => rights.extend(items(columns).into_iter().map(|column| right(Some(column)))),
                    None => rights.push(right(None)),
                }
            }
        }
    }
    Some(rights)
}

/// The kind of what is granted on, and the names.
fn objects(on: &str) -> (&'static str, &str) {
    let kinds = [
        ("schema ", "schema"),
        ("function ", "function"),
        ("all tables in schema ", "all tables"),
        ("all sequences in schema ", "all sequences"),
    ];
    kinds.into_iter().find_map(|(begin, kind)| Some((kind, on.strip_prefix(begin)?))).unwrap_or(("table", on))
}

/// What stands between commas that are in no parentheses.
fn items(text: &str) -> Vec<&str> {
    let (mut depth, mut found, mut from) = (0_u32, Vec::new(), 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    found.extend(text.get(from..));
    found.into_iter().map(str::trim).collect()
}

/// A name, and what stands in parentheses behind it.
fn split_columns(item: &str) -> (&str, Option<&str>) {
    match item.split_once('(') {
        Some((name, rest)) => (name.trim(), Some(rest.trim_end_matches(')'))),
        None => (item.trim(), None),
    }
}

/// What is known of the role.
struct Role {
    name: String,
    superuser: bool,
    /// How many connections it may have; none: as many as the server.
    connections: Option<usize>,
    /// It owns something of pgbaton's.
    owns: bool,
    lacking: Vec<String>,
    beyond: Vec<String>,
}

/// `relays` is how many one replica runs.
pub(super) async fn look(database: &Database, relays: usize) -> Result<Vec<Finding>, Error> {
    let internal = |text| Error::new(Kind::Internal, text);
    let rights = rights(&migrate::relay_grants("relay")).ok_or_else(|| internal("the grants cannot be read"))?;
    let kinds: Vec<&str> = rights.iter().map(|right| right.kind).collect();
    let names: Vec<&str> = rights.iter().map(|right| right.name.as_str()).collect();
    let privileges: Vec<&str> = rights.iter().map(|right| right.privilege.as_str()).collect();
    let columns: Vec<Option<&str>> = rights.iter().map(|right| right.column.as_deref()).collect();
    let wanted: [Parameter<'_>; 4] = [
        (&kinds, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&privileges, Type::TEXT_ARRAY),
        (&columns, Type::TEXT_ARRAY),
    ];
    let connection = database.connect().await?;
    let statements = [(sql::ROLE_FACTS, &[][..]), (sql::GRANTS_LACKING, &wanted)];
    let [role, lacking] = connection.pipeline(Access::Look, statements).await?;
    let row = role.first().ok_or_else(|| internal("the server did not say which role this is"))?;
    let role = Role {
        name: row.try_get("name")?,
        superuser: row.try_get("superuser")?,
        connections: usize::try_from(row.try_get::<_, i32>("connections")?).ok(),
        owns: row.try_get("owns")?,
        lacking: lacking.iter().map(|row| row.try_get("lacking")).collect::<Result<_, _>>()?,
        beyond: row.try_get("beyond")?,
    };
    Ok(judge(&role, OF_A_REPLICA + OF_A_RELAY * relays))
}

/// `connections` are those that one replica needs.
fn judge(role: &Role, connections: usize) -> Vec<Finding> {
    let Role { name, superuser, owns, lacking, beyond, .. } = role;
    let mut found = Vec::new();
    if !lacking.is_empty() {
        let what = format!("role {name} lacks {}", some(lacking));
        let remedy = format!("As the schema's owner, run what `pgbaton grants --relay {}` prints", sql::quoted(name));
        found.push(Finding::problem(CHECK, what, remedy));
    }
    const OF_ITS_OWN: &str =
        "Give replicas a role of their own with what `pgbaton grants` prints, and name it in database.dsn";
    if *superuser {
        found.push(Finding::warning(
            CHECK,
            format!("role {name} is a superuser: a replica needs none of that"),
            OF_ITS_OWN,
        ));
    } else if *owns {
        let what = format!(
            "role {name} owns pgbaton's schema or tables, so that whoever has the replica's DSN can change or drop the outbox"
        );
        found.push(Finding::warning(CHECK, what, OF_ITS_OWN));
    } else if !beyond.is_empty() {
        let what = format!("role {name} may do more than a replica needs: {}", some(beyond));
        found.push(Finding::warning(
            CHECK,
            what,
            format!("Revoke it from {} (or from the role or `public` that it has it from)", sql::quoted(name)),
        ));
    }
    if let Some(most) = role.connections.filter(|most| *most < connections) {
        let what = format!(
            "role {name} may have {most} connections, and one replica of this configuration takes {connections}, without its sinks'"
        );
        found.push(Finding::warning(CHECK, what, format!("alter role {} connection limit -1", sql::quoted(name))));
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, format!("role {name} may do what a replica needs, and no more")));
    }
    found
}

/// Row-level security of pgbaton's own tables. That of an adopted one is told by its source.
pub(super) async fn row_security(database: &Database) -> Result<Vec<Finding>, Error> {
    let connection = database.connect().await?;
    let [rows] = connection.pipeline(Access::Look, [(sql::ROW_SECURITY, &[])]).await?;
    let tables = rows.iter().map(|row| Ok((row.try_get("name")?, row.try_get("active")?)));
    Ok(judge_row_security(&tables.collect::<Result<Vec<_>, Error>>()?))
}

/// Tables that have it, each with whether it is applied to this role.
fn judge_row_security(tables: &[(String, bool)]) -> Vec<Finding> {
    const CHECK: &str = "row_security";
    let of = |(table, active): &(String, bool)| {
        let remedy = format!("alter table pgbaton.{table} disable row level security");
        // A replica refuses an outbox that has it, whether it is applied or not.
        if *active || table.starts_with("outbox") {
            Finding::problem(
                CHECK,
                format!("pgbaton.{table} has row-level security, which may hide rows from replicas"),
                remedy,
            )
        } else {
            Finding::warning(
                CHECK,
                format!("pgbaton.{table} has row-level security, which is not applied to this role"),
                remedy,
            )
        }
    };
    match tables {
        [] => vec![Finding::ok(CHECK, "no table of pgbaton's has any")],
        tables => tables.iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn grants_are_read_as_they_are_written() {
        let right = |kind, name: &str, privilege: &str, column: Option<&str>| {
            let (name, privilege, column) = (name.to_owned(), privilege.to_owned(), column.map(str::to_owned));
            Right { kind, name, privilege, column }
        };
        assert_eq!(
            rights("grant update (beat, relays), delete on pgbaton.replica to \"r\";\n"),
            Some(vec![
                right("table", "replica", "update", Some("beat")),
                right("table", "replica", "update", Some("relays")),
                right("table", "replica", "delete", None),
            ])
        );
        assert_eq!(
            rights("grant execute on function pgbaton.a(text, integer),\n  pgbaton.b() to r"),
            Some(vec![right("function", "a", "execute", None), right("function", "b", "execute", None)])
        );
        assert_eq!(
            rights("grant select on all tables in schema pgbaton to r"),
            Some(vec![right("all tables", "pgbaton", "select", None)])
        );
        assert_eq!(rights("revoke select on t from r"), None);
    }

    #[test]
    fn every_grant_of_a_relay_is_understood() {
        let rights = rights(&migrate::relay_grants("r")).unwrap();
        assert!(rights.len() > 25, "{}", rights.len());
        assert!(
            rights
                .iter()
                .all(|right| right.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')),
            "{rights:?}"
        );
    }

    fn role() -> Role {
        Role {
            name: "r".into(),
            superuser: false,
            connections: None,
            owns: false,
            lacking: Vec::new(),
            beyond: Vec::new(),
        }
    }

    #[test]
    fn too_little_is_worse_than_too_much() {
        let judged = |role: Role| judge(&role, 5).into_iter().map(|found| found.level).collect::<Vec<_>>();
        assert_eq!(judged(role()), [Level::Ok]);
        assert_eq!(judged(Role { lacking: vec!["usage on schema pgbaton".into()], ..role() }), [Level::Problem]);
        assert_eq!(judged(Role { superuser: true, owns: true, beyond: vec!["x".into()], ..role() }), [Level::Warning]);
        assert_eq!(judged(Role { owns: true, ..role() }), [Level::Warning]);
        assert_eq!(judged(Role { beyond: vec!["delete on outbox".into()], ..role() }), [Level::Warning]);
        assert_eq!(judged(Role { connections: Some(4), ..role() }), [Level::Warning]);
        assert_eq!(judged(Role { connections: Some(5), ..role() }), [Level::Ok]);
    }

    #[test]
    fn row_security_of_the_outbox_is_refused_in_any_case() {
        let judged = |name: &str, active| judge_row_security(&[(name.to_owned(), active)])[0].level;
        assert_eq!(judged("outbox_3", false), Level::Problem);
        assert_eq!(judged("lane", true), Level::Problem);
        assert_eq!(judged("lane", false), Level::Warning);
        assert_eq!(judge_row_security(&[])[0].level, Level::Ok);
    }
}
