//! The sink of the model, as the busy lane sees it, and what an onlooker finds out about the writes it accepts.

use super::database::Id;
use super::setting::SinkKind;

/// Who opened the lane at the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opener {
    pub id: Id,
    pub epoch: u8,
}

/// A message that the sink took, with the epoch it came under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taken {
    pub message: u8,
    pub epoch: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Sink {
    /// The greatest epoch that opened the lane here. Only a fencing sink keeps it.
    pub epoch: u8,
    /// The last position that came with a write, and its timeline. Only a fencing sink keeps it.
    pub position: Option<(u8, u8)>,
    /// All that was taken, in order.
    pub taken: Vec<Taken>,
    /// Seen from outside: whose epoch it is. Epochs are given out twice when commits are lost, openers are not.
    opener: Option<Opener>,
    /// Seen from outside: a write was taken from somebody after another had opened the lane.
    pub took_stale: bool,
    /// Seen from outside: a write was taken from somebody whose lease was over.
    pub took_late: bool,
    /// Seen from outside: a message was taken twice.
    pub took_twice: bool,
}

/// A write, with what the onlooker knows about its writer.
pub struct Write {
    pub by: Opener,
    pub message: u8,
    /// The position it leads to, and the timeline that the writer knows.
    pub position: (u8, u8),
    pub lease_over: bool,
}

impl Sink {
    /// The lane is opened: from now on older epochs are refused.
    pub fn open(&mut self, kind: SinkKind, opener: Opener) {
        if kind != SinkKind::Plain {
            self.epoch = opener.epoch;
        }
        self.opener = Some(opener);
    }

    /// Whether the write was accepted, be it as a repeat.
    pub fn write(&mut self, kind: SinkKind, write: &Write) -> bool {
        if kind != SinkKind::Plain {
            if write.by.epoch != self.epoch {
                return false;
            }
            self.position = Some(write.position);
        }
        self.took_stale |= self.opener != Some(write.by);
        self.took_late |= write.lease_over;
        let known = self.has(write.message);
        if known && kind == SinkKind::FencingById {
            return true;
        }
        self.took_twice |= known;
        self.taken.push(Taken { message: write.message, epoch: write.by.epoch });
        true
    }

    pub fn has(&self, message: u8) -> bool {
        self.taken.iter().any(|taken| taken.message == message)
    }
}
