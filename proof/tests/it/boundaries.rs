//! The boundaries of the design, one test for each rule, every step by hand: what happens between two statements is
//! decided by the test. `proof/mutants/` breaks each rule, and `./dev mutants` shows that its test notices.

mod leases;
mod reading;
mod settings;
mod writing;
