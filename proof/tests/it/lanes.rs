//! Who holds which lane: shares, joining, leaving, dying; and what is settled when a lane changes hands.

mod settling;
mod sharing;
