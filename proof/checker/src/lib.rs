//! Judges the history of a torture run. It knows neither the relay nor the harness: only what they wrote down, and what
//! arrived.

pub mod history;
