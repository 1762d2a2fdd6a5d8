//! A PostgreSQL transactional outbox relay.
pub mod lane;
pub mod lease;
pub mod message;
pub mod outcome;
pub mod plan;
pub mod position;
pub mod retry;
