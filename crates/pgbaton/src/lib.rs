//! A PostgreSQL transactional outbox relay: exclusive lanes, gap-free positions, no row version per message.
//!
//! Applications insert messages into an outbox table inside their own transaction; several replicas deliver them to a
//! sink, and no row is ever published by two of them. `ARCHITECTURE.md` in the repository says how and why.
//!
//! # Layout
//!
//! Read in this order.
//!
//! * The pure core, which does no I/O and takes the time as an argument: [`message`], [`lane`], [`lease`], [`position`],
//!   [`plan`], [`outcome`], [`retry`].
//! * A process: [`replica`]. The path of a message: [`relay`] and its four files `claim`, `read`, `publish`, `acknowledge`.
//! * The two seams: [`source`] (where messages come from, and where it is written how far each lane is) and [`sink`]. The
//!   one source is `source/native`: `sight` looks for targets, `read` carries out the plan, `rows` makes messages of rows.
//! * Around it: [`clock`], [`config`], `connection` with `dsn` and `tls`, [`control`], `error`, [`housekeeping`],
//!   [`metrics`], [`migrate`], [`observe`], `thread`, [`vitals`], and [`sql`], which lists every statement.
//!
//! # Features
//!
//! * `http` (default): the sink that posts webhooks.
//! * `postgres` (default): the sink that writes to an inbox table.
//! * `faults`: fail points for tests. Never in a shipped build.
//! * `conformance`: the suite that every sink passes, `sink::conformance`.

pub mod clock;
pub mod config;
mod connection;
pub mod control;
mod dsn;
mod error;
mod faults;
pub mod housekeeping;
pub mod lane;
pub mod lease;
pub mod message;
pub mod metrics;
pub mod migrate;
pub mod observe;
pub mod outcome;
pub mod plan;
pub mod position;
pub mod relay;
pub mod replica;
pub mod retry;
pub mod sink;
pub mod source;
pub mod sql;
mod thread;
mod tls;
pub mod vitals;

pub use connection::Database;
pub use error::Error;
