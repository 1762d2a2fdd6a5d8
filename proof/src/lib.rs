//! The proof that pgbaton does what it says: test servers, child processes under control, writers, the classic relay, the
//! demo, the benches and the mutants. Never published.
//!
//! * [`servers`]: throwaway PostgreSQL clusters.
//! * [`fixture`]: a migrated database for each test, with its roles and the real executable.
//! * [`writers`]: concurrent writers whose commit order is known, and the verdict on what arrived.
//! * [`classic`]: the home-made relay that pgbaton replaces.
//! * [`endpoint`]: an HTTP endpoint that answers as a script says.
//! * [`pooler`]: PgBouncer in front of a test server.
//! * [`demo`]: all of it together, with things going wrong.
//! * [`mutants`]: the code broken on purpose, to see whether the tests notice.
//! * [`wrong`]: relays that break a rule, built into one executable, to see whether the judge of a torture run catches them.
//! * [`proxy`]: a TCP proxy that cuts, swallows, stalls and refuses.
//! * [`clock`]: a wall clock that steps, for one process.
//! * [`disk`]: a small file system that can be full.
//! * [`torture`]: hours of hostile writers and faults against real replicas, and the history that is judged.
//! * [`process`]: the relay's executable as a child that a test pauses, kills and reads the log of.

pub mod bench;
pub mod classic;
pub mod clock;
pub mod demo;
pub mod disk;
pub mod endpoint;
mod error;
pub mod fixture;
pub mod mutants;
pub mod pooler;
pub mod process;
pub mod proxy;
pub mod servers;
pub mod torture;
mod tree;
pub mod writers;
pub mod wrong;

pub use error::Error;
