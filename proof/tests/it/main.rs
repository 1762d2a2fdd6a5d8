//! The one integration test binary: one link, and one server per version for all tests.

// The whole binary is a test, but clippy takes its helpers for tests, which may unwrap, only below
// `cfg(test)` (see clippy.toml).
#[cfg(test)]
mod adopted;
#[cfg(test)]
mod boundaries;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod daemon;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod hand;
#[cfg(test)]
mod held;
#[cfg(test)]
mod history;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod lanes;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod model;
#[cfg(test)]
mod operator;
#[cfg(test)]
mod order;
#[cfg(test)]
mod parked;
#[cfg(test)]
mod pause;
#[cfg(test)]
mod pinning;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod pooler;
#[cfg(test)]
mod process;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rebase;
#[cfg(test)]
mod recorder;
#[cfg(test)]
mod relays;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod segments;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod statements;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod trace;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod webhooks;
#[cfg(test)]
mod wrong;
