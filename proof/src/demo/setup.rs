//! Makes tables and starts replicas, as an operator would: with the real executable, in three roles.

use std::process::{Command, Stdio};

use super::Args;
use super::destination::{Destination, Table, Tail};
use super::fleet::{self, Fleet};
use super::lanes::Lanes;
use super::place::{Login, Place};
use super::report::SinkKind;
use super::screen::{Screen, Tone};
use super::stage::Stage;
use crate::Error;
use crate::fixture::{before_migrating, finish, toml_text};
use crate::writers::{self, Progress, connect};
use crate::{classic, process};

const REPLICAS: usize = 3;
/// The table of the `postgres` sink.
const INBOX: &str = "inbox.orders";
/// What the classic relay reads its DSN from: a command line could be seen by others.
pub(super) const CLASSIC_DSN: &str = "PROOF_CLASSIC_DSN";

/// Three replicas of `pgbaton run`.
pub(super) async fn pgbaton<'a>(args: &Args, place: &Place, screen: &'a Screen) -> Result<Stage<'a>, Error> {
    migrate(place).await?;
    writers::prepare(&connect(&place.admin.dsn).await?, &place.producer.role, args.keys).await?;
    let (sink, destination) = match args.sink {
        SinkKind::Postgres => inbox(place).await?,
        SinkKind::File => file(place),
    };
    let roles = if place.is_private() { ", with three roles" } else { "" };
    screen.event(Tone::Step, &format!("ran `pgbaton migrate` and `pgbaton grants`{roles}"));
    let commands = (1..=REPLICAS).map(|number| fleet::pgbaton(number, place.folder.path(), &place.relay.dsn, &sink));
    let fleet = Fleet::start(commands.collect::<Result<_, _>>()?, place.folder.path())?;
    let lanes = Some(Lanes::new(connect(&place.admin.dsn).await?));
    Ok(stage(args, screen, fleet, lanes, destination))
}

/// Three replicas of the classic relay: this executable under another name.
pub(super) async fn classic<'a>(args: &Args, place: &Place, screen: &'a Screen) -> Result<Stage<'a>, Error> {
    let admin = connect(&place.admin.dsn).await?;
    classic::prepare(&admin, &place.producer.role, &place.relay.role).await?;
    writers::prepare(&admin, &place.producer.role, args.keys).await?;
    let own = process::executable("proof")?;
    let command = || {
        let mut command = Command::new(&own);
        command.arg("classic").env(CLASSIC_DSN, &place.relay.dsn);
        command
    };
    let fleet = Fleet::start((0..REPLICAS).map(|_| command()).collect(), place.folder.path())?;
    Ok(stage(args, screen, fleet, None, Destination::Table { client: admin, table: Table::Classic }))
}

fn stage<'a>(
    args: &Args,
    screen: &'a Screen,
    fleet: Fleet,
    lanes: Option<Lanes>,
    destination: Destination,
) -> Stage<'a> {
    let (messages, progress) = (args.messages, Progress::default());
    Stage { screen, messages, fleet, lanes, destination, writers: None, progress, arrived: 0 }
}

async fn migrate(place: &Place) -> Result<(), Error> {
    let mut grants = fleet::executable()?;
    grants.args(["grants", "--migrate", &place.migrate.role, "--relay", &place.relay.role]);
    grants.args(["--producer", &place.producer.role]);
    let grants = output(grants).await?;
    run(&place.admin, before_migrating(&grants)).await?;
    let mut migrate = fleet::executable()?;
    migrate.arg("migrate").env("PGBATON_DSN", &place.migrate.dsn);
    output(migrate).await?;
    run(&place.admin, &grants).await
}

/// The value of `sink` in the configuration, and where to look for what it does.
async fn inbox(place: &Place) -> Result<(String, Destination), Error> {
    let mut ddl = fleet::executable()?;
    ddl.args(["inbox", INBOX, "--role", &place.inbox_relay.role]);
    run(&place.inbox_admin, &output(ddl).await?).await?;
    let dsn = toml_text(&place.inbox_relay.dsn);
    let sink = format!("{{ type = \"postgres\", dsn = {dsn}, table = \"{INBOX}\" }}");
    Ok((sink, Destination::Table { client: connect(&place.inbox_admin.dsn).await?, table: Table::Inbox }))
}

fn file(place: &Place) -> (String, Destination) {
    let path = place.folder.path().join("orders.jsonl");
    let sink = format!("{{ type = \"file\", path = {} }}", toml_text(&path.to_string_lossy()));
    (sink, Destination::File(Tail::new(path)))
}

async fn run(login: &Login, sql: &str) -> Result<(), Error> {
    connect(&login.dsn)
        .await?
        .batch_execute(sql)
        .await
        .map_err(|cause| Error::because("making the tables of the demo", &cause))
}

/// What a command writes to its standard output; an error with what it says if it fails.
async fn output(mut command: Command) -> Result<String, Error> {
    command.stdin(Stdio::null());
    let output = finish(&mut command).await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::new(format!("pgbaton failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
