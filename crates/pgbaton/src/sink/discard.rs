//! Throws messages away. For benches: what is left is the cost of the relay itself.

use async_trait::async_trait;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use crate::clock::Deadline;
use crate::lane::Grant;
use crate::outcome::{AppendError, Fault, Outcome};
use crate::source::Opaque;

/// The sink, and each of its lanes.
#[derive(Debug, Clone, Copy)]
pub struct Discard;

#[async_trait]
impl Sink for Discard {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities::plain(Tier::T5))
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl OpenLane for Discard {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        deadline.check().map_err(|_| AppendError::LeaseOver)?;
        Ok(vec![Outcome::Delivered; part.len()])
    }
}
