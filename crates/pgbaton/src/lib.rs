//! A PostgreSQL transactional outbox relay: exclusive lanes, gap-free positions, no row version per message.
//!
//! Applications insert messages into an outbox table inside their own transaction; several replicas deliver them to a
//! sink, and no row is ever published by two of them. `ARCHITECTURE.md` in the repository says how and why.
//!
//! # In a program of your own
//!
//! A program that sends needs one function, which works inside its own transaction ([`mod@send`]):
//!
//! ```no_run
//! use pgbaton::send::{NewMessage, send};
//!
//! # async fn pay(client: &mut pgbaton::tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! transaction.execute("update app.orders set state = 'paid' where id = $1", &[&42_i64]).await?;
//! send(&transaction, &NewMessage::new("orders.paid").key("42").json("{\"order\": 42}")).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A program that delivers runs a [`replica::Replica`], beside any number of others and of `pgbaton run` with the same relays:
//!
//! ```no_run
//! use pgbaton::relay::RelaySpec;
//! use pgbaton::replica::{Replica, ReplicaSpec};
//! use pgbaton::sink::discard::Discard; // or one of your own: see `examples/embed.rs`
//!
//! # async fn run(stopped: tokio::sync::watch::Receiver<bool>) -> Result<(), pgbaton::Error> {
//! let spec = ReplicaSpec::new("host=localhost dbname=app user=pgbaton_relay")?.relay(RelaySpec::new("orders", Discard)?);
//! Replica::new(spec).run(stopped).await
//! # }
//! ```
//!
//! `examples/send.rs` and `examples/embed.rs` are whole programs. Logs go to whatever `tracing` subscriber there is, and
//! `docs/operate.md` says what each warning means. Both run on any number of `tokio` workers.
//!
//! # Layout
//!
//! Read in this order.
//!
//! * The pure core, which does no I/O and takes the time as an argument: [`message`], [`lane`], [`lease`], [`position`],
//!   [`plan`], [`outcome`], [`retry`].
//! * A process: [`replica`]. The path of a message: [`relay`] and its four files `claim`, `read`, `publish`, `acknowledge`.
//! * The two seams: [`source`] (where messages come from, and where it is written how far each lane is) and [`sink`]. The
//!   outbox is `source/native`: `sight` looks for targets, `read` carries out the plan, `rows` makes messages of rows. A table
//!   that others made is `source/table`: `look` finds its pending rows, `fetch` makes messages of them, `mark` marks them. What each
//!   error of a sink means is said in [`outcome::codes`].
//! * Around it: [`adopt`], [`clock`], [`config`], `connection` with `dsn` and `tls`, [`control`], `error`, [`mod@send`],
//!   [`housekeeping`], [`metrics`], [`migrate`], [`observe`], `thread`, [`vitals`], and [`sql`], which lists every statement.
//!
//! # Features
//!
//! * `http` (default): the sink that posts webhooks.
//! * `postgres` (default): the sink that writes to an inbox table.
//! * `faults`: fail points, and a history of what the process does, for tests. Never in a shipped build.
//! * `conformance`: the suite that every sink passes, `sink::conformance`.

pub mod adopt;
pub mod clock;
pub mod config;
mod connection;
pub mod control;
mod dsn;
mod error;
#[cfg(not(feature = "faults"))]
mod faults;
#[cfg(feature = "faults")]
pub mod faults;
mod history;
pub mod housekeeping;
pub mod lane;
pub mod lease;
pub mod message;
pub mod metrics;
pub mod migrate;
pub mod observe;
pub mod outcome;
mod plain_file;
pub mod plan;
pub mod position;
pub mod relay;
mod reminder;
pub mod replica;
pub mod retry;
pub mod send;
pub mod sink;
pub mod source;
pub mod sql;
mod thread;
mod tls;
pub mod vitals;

pub use connection::Database;
pub use error::Error;
/// The client whose transactions [`send`](send::send) works in: the same version as this crate's.
pub use tokio_postgres;
