//! `pgbaton adopt`.

use pgbaton::adopt::{self, Configured, Report, Verdict};
use pgbaton::source::table::TableName;

use crate::args::AdoptArgs;
use crate::{Failure, print, print_json};

/// Proposes a relay for a table, tries one without writing, or prints its grants.
pub(crate) async fn run(args: &AdoptArgs) -> Result<(), Failure> {
    let table = TableName::parse(&args.table).ok_or_else(|| {
        Failure::Usage(
            "the table is no name such as app.outbox; a part with a dot in it stands in double quotes".into(),
        )
    })?;
    let database = args.database.database()?;
    if !args.check && !args.grants {
        let proposal = adopt::look(&database, &table, args.relay.as_deref()).await?;
        print(&proposal.to_toml(args.sink.as_deref(), &database)?)?;
        return proposal.refusal().map_or(Ok(()), |error| Err(error.into()));
    }
    let relay = relay(args, &table, &database).await?;
    if args.grants {
        return print(&adopt::grants(&database, &relay, &args.role).await?);
    }
    let report = adopt::check(&database, &relay).await?;
    let printed = if args.json { print_json(&report) } else { print(&in_words(&report)) };
    printed?;
    if report.is_good() { Ok(()) } else { Err(Failure::Found) }
}

/// The relay of the configuration, or else the one that is proposed.
async fn relay(args: &AdoptArgs, table: &TableName, database: &pgbaton::Database) -> Result<Configured, Failure> {
    if let Some(config) = args.database.config()?
        && let Some(relay) = config.adopting(table, args.relay.as_deref())?
    {
        if args.sink.is_some() {
            return Err(Failure::Usage(format!(
                "relay {} has a sink in the configuration: leave --sink out",
                relay.name()
            )));
        }
        return Ok(relay);
    }
    let proposal = adopt::look(database, table, args.relay.as_deref()).await?;
    Ok(proposal.configured(args.sink.as_deref(), database)?)
}

fn in_words(report: &Report) -> String {
    let mut text = format!("relay {} on {}\n", report.relay, report.table);
    for finding in &report.findings {
        let verdict = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Advice => "advice",
            Verdict::Wrong => "WRONG",
        };
        text.push_str(&format!("{verdict:<7} {:<6} {}\n", finding.about, finding.text));
    }
    text
}
