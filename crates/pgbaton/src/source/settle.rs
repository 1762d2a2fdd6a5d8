//! What a sink holds of a lane against what the database knows: which of the two counts. Pure, and the same for every source.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{Bookmark, Opaque, Opened};
use crate::error::{Error, Kind};
use crate::lane::Grant;
use crate::position::Incarnation;

/// Which registration of its relay a position belongs to: a relay that was dropped and registered again starts anew, and
/// so does one whose positions were re-based.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registration(pub(super) String);

/// What every source's bookmarks name, beside the place.
#[derive(Deserialize)]
struct Named {
    registration: Registration,
}

/// What the database knows of a lane.
pub(super) struct Ours<'a> {
    pub(super) grant: &'a Grant,
    /// The life of the database it was granted in.
    pub(super) here: &'a Incarnation,
    /// The number of the last batch that was handed to the sink.
    pub(super) batch: i64,
    pub(super) registration: &'a Registration,
    /// Incarnations from before `pg_upgrade` that count as this one.
    pub(super) former: &'a [Incarnation],
    /// Timelines up to this one were given up.
    pub(super) forsaken: i32,
}

impl Ours<'_> {
    /// How the lane is taken up, and the sink's bookmark where the lane goes on from that instead of ours. `resend`: from
    /// there, too, if the sink has lost batches.
    ///
    /// # Errors
    /// The sink's position was written by a newer version, or says that this server is an old primary.
    pub(super) fn settle(&self, holds: Option<&Opaque>, resend: bool) -> Result<(Opened, Option<Bookmark>), Error> {
        let batch = self.batch;
        let Some(holds) = holds else { return Ok((Opened::Ours { batch }, None)) };
        let Some((held, bookmark)) = holds.read() else {
            return Err(Error::refused(
                format!("lane {}: the sink's position was written by a newer version of pgbaton", self.grant.lane),
                "Run that version, or a newer one",
            ));
        };
        let there = &bookmark.incarnation;
        self.not_an_old_primary(there)?;
        if registration(&bookmark)? != *self.registration {
            return Ok((Opened::Announced { batch: batch.max(held) }, None));
        }
        if there != self.here && !self.former.contains(there) {
            // Within one registration the sink is never behind, unless it has lost something: in any incarnation.
            let opened = if held < batch {
                Opened::SinkLost { resend: false, batch, holds: held }
            } else {
                Opened::Announced { batch: held }
            };
            return Ok((opened, None));
        }
        Ok(match held.cmp(&batch) {
            Ordering::Equal => (Opened::Ours { batch }, None),
            Ordering::Greater => (Opened::Settled { batch: held }, Some(bookmark)),
            Ordering::Less => (Opened::SinkLost { resend, batch, holds: held }, resend.then_some(bookmark)),
        })
    }

    fn not_an_old_primary(&self, there: &Incarnation) -> Result<(), Error> {
        let Self { grant, here, forsaken, .. } = self;
        if there.system != here.system || there.timeline <= here.timeline.max(*forsaken) {
            return Ok(());
        }
        Err(Error::refused(
            format!(
                "lane {}: the sink has been written from timeline {}, this server is on {}: it is the old primary",
                grant.lane, there.timeline, here.timeline
            ),
            "Shut this server down or make it a standby, and point the DSN at the new primary. If this server is the \
             one to go on with, stop all replicas and run `pgbaton rebase --forsake-timeline N` with that number",
        ))
    }
}

fn registration(bookmark: &Bookmark) -> Result<Registration, Error> {
    let named: Named = serde_json::from_str(bookmark.place.get())
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be read").because(error))?;
    Ok(named.registration)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::lane::{Epoch, Lane, RelayName};

    const HERE: &str = "1/2/3";

    fn settled(holds: Option<(i64, &str, &str)>, batch: i64, resend: bool) -> Result<(Opened, bool), String> {
        let grant =
            Grant { lane: Lane { relay: RelayName::new("orders").unwrap(), number: 0, of: 16 }, epoch: Epoch(7) };
        let (here, former) = (HERE.parse().unwrap(), ["9/2/1".parse().unwrap()]);
        let ours = Ours {
            grant: &grant,
            here: &here,
            batch,
            registration: &Registration("ours".into()),
            former: &former,
            forsaken: 0,
        };
        let holds = holds.map(|(batch, incarnation, registration)| {
            let place = format!(r#"{{"registration":"{registration}","at":1}}"#);
            let place = RawValue::from_string(place).unwrap();
            Opaque::new(batch, &Bookmark { incarnation: incarnation.parse().unwrap(), place })
        });
        let settled = ours.settle(holds.as_ref(), resend).map_err(|error| error.to_string())?;
        Ok((settled.0, settled.1.is_some()))
    }

    #[test]
    fn the_newer_of_two_counts() {
        assert_eq!(settled(None, 5, false), Ok((Opened::Ours { batch: 5 }, false)));
        assert_eq!(settled(Some((5, HERE, "ours")), 5, false), Ok((Opened::Ours { batch: 5 }, false)));
        assert_eq!(settled(Some((6, HERE, "ours")), 5, false), Ok((Opened::Settled { batch: 6 }, true)));
        let lost = |resend| Opened::SinkLost { resend, batch: 5, holds: 4 };
        assert_eq!(settled(Some((4, HERE, "ours")), 5, false), Ok((lost(false), false)));
        assert_eq!(settled(Some((4, HERE, "ours")), 5, true), Ok((lost(true), true)));
    }

    #[test]
    fn another_registration_or_life_does_not_count() {
        assert_eq!(settled(Some((9, HERE, "theirs")), 5, false), Ok((Opened::Announced { batch: 9 }, false)));
        assert_eq!(settled(Some((4, HERE, "theirs")), 5, false), Ok((Opened::Announced { batch: 5 }, false)));
        assert_eq!(settled(Some((6, "1/2/2", "ours")), 5, false), Ok((Opened::Announced { batch: 6 }, false)));
        let lost = Opened::SinkLost { resend: false, batch: 5, holds: 4 };
        assert_eq!(settled(Some((4, "1/2/2", "ours")), 5, true), Ok((lost, false)));
        // From before `pg_upgrade`.
        assert_eq!(settled(Some((6, "9/2/1", "ours")), 5, false), Ok((Opened::Settled { batch: 6 }, true)));
    }

    #[test]
    fn an_old_primary_is_refused() {
        assert!(settled(Some((6, "1/2/4", "ours")), 5, false).unwrap_err().contains("old primary"));
    }
}
