//! A replica's ways: a door to each of the outbox's servers and one to the sink, so that each replica has network trouble of
//! its own.

use tokio::sync::watch;

use crate::Error;
use crate::proxy::{End, Proxy, Way};

/// The ways of one replica.
pub(super) struct Ways {
    /// To side A and side B.
    sides: [Proxy; 2],
    /// To the sink, if it is behind a port.
    pub(super) sink: Option<Proxy>,
}

/// What happens to a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Cut,
    BlackHole,
    /// What the replica says does not get through.
    StallQuestions,
    /// What it is answered does not get through.
    StallAnswers,
    Refuse,
}

impl Ways {
    pub(super) async fn open(ports: &watch::Sender<[u16; 2]>, sink: Option<u16>) -> Result<Ways, Error> {
        let [a, b] = *ports.borrow();
        let sides = [Proxy::start(a).await?, Proxy::start(b).await?];
        let sink = match sink {
            Some(port) => Some(Proxy::start(port).await?),
            None => None,
        };
        Ok(Ways { sides, sink })
    }

    /// Leads to the servers where they are now.
    pub(super) fn lead_to(&self, ports: [u16; 2]) {
        for (door, port) in self.sides.iter().zip(ports) {
            door.lead_to(port);
        }
    }

    /// For the relay's role: both servers.
    pub(super) fn dsn(&self, database: &str, user: &str) -> String {
        let [a, b] = &self.sides;
        format!("host=127.0.0.1,127.0.0.1 port={},{} user={user} dbname={database}", a.port(), b.port())
    }

    /// To the server on this side, the first one or the other.
    pub(super) fn side(&self, nth: usize) -> &Proxy {
        let [a, b] = &self.sides;
        if nth == 0 { a } else { b }
    }

    /// Connections on the way to the outbox.
    pub(super) fn connections(&self) -> usize {
        self.sides.iter().map(Proxy::connections).sum()
    }

    /// On the way to the outbox.
    pub(super) async fn hurt(&self, trouble: Trouble) -> Result<(), Error> {
        for door in &self.sides {
            hurt(door, trouble).await?;
        }
        Ok(())
    }

    pub(super) async fn heal(&self) -> Result<(), Error> {
        for door in &self.sides {
            door.heal().await?;
        }
        Ok(())
    }
}

/// One way has trouble from now on, until it is healed. A cut is over at once.
pub(super) async fn hurt(door: &Proxy, trouble: Trouble) -> Result<(), Error> {
    match trouble {
        Trouble::Cut => door.cut(End::Reset),
        Trouble::BlackHole => door.black_hole(),
        Trouble::StallQuestions => door.stall(Way::ToServer),
        Trouble::StallAnswers => door.stall(Way::ToClient),
        Trouble::Refuse => {
            door.refuse().await?;
            door.cut(End::Close);
        }
    }
    Ok(())
}
