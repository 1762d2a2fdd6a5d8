//! The one integration test binary: one link, and one server per version for all tests.

// The whole binary is a test, but clippy takes its helpers for tests, which may unwrap, only below
// `cfg(test)` (see clippy.toml).
#[cfg(test)]
mod process;
#[cfg(test)]
mod servers;
