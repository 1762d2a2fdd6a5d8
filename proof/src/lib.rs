//! The proof that pgbaton does what it says: test servers, child processes under control, and (to come)
//! writers, the classic relay, the demo and the benches. Never published.
//!
//! * [`servers`]: throwaway PostgreSQL clusters.
//! * [`fixture`]: a migrated database for each test, with its roles and the real executable.
//! * [`process`]: the relay's executable as a child that a test pauses, kills and reads the log of.

mod error;
pub mod fixture;
pub mod process;
pub mod servers;

pub use error::Error;
