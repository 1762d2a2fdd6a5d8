//! A TCP proxy between a client and a server that cuts, swallows, stalls and refuses, and knows nothing of what passes.
//!
//! ```no_run
//! # async fn example(fixture: &proof::fixture::Fixture, server: u16) -> Result<(), proof::Error> {
//! use proof::proxy::{End, Proxy, Way};
//!
//! let proxy = Proxy::start(server).await?;
//! let dsn = proxy.dsn(fixture.relay_dsn())?; // for the relay under test
//! proxy.cut(End::Reset); // every connection ends now; new ones pass
//! proxy.black_hole(); // nothing passes and nothing ends: as if a cable were cut
//! proxy.heal().await?; // what is new passes again; connections that lost something stay silent
//! proxy.stall(Way::ToClient); // answers wait, and are not lost
//! proxy.heal().await?;
//! proxy.refuse().await?; // as if nobody listened
//! # Ok(())
//! # }
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::Error;
use crate::process::POLL;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What clients send.
    ToServer,
    /// What the server answers.
    ToClient,
}

/// How connections end when they are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// RST to both sides.
    Reset,
    /// FIN to both sides.
    Close,
}

/// What happens to connections, old and new.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    /// Everything is read and thrown away; no end of a connection is passed on.
    black_hole: bool,
    stalled: Option<Way>,
    /// How often connections were cut, and how the last time.
    cuts: u64,
    end: Option<End>,
}

/// The proxy. Connections through it live as long as it does.
#[derive(Debug)]
pub struct Proxy {
    server: Arc<AtomicU16>,
    port: u16,
    weather: watch::Sender<Weather>,
    refusing: watch::Sender<bool>,
    /// Follows `refusing`, once the port answers accordingly.
    refuses: watch::Receiver<bool>,
    counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// A proxy on a port of its own, in front of this port of 127.0.0.1.
    pub async fn start(server: u16) -> Result<Proxy, Error> {
        let failed = |cause: io::Error| Error::because("starting a proxy", &cause);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (weather, (refusing, told)) = (watch::Sender::new(Weather::default()), watch::channel(false));
        let (telling, refuses) = watch::channel(false);
        let (counts, server) = (Arc::<Counts>::default(), Arc::new(AtomicU16::new(server)));
        let door = Door {
            address,
            server: Arc::clone(&server),
            weather: weather.subscribe(),
            told,
            telling,
            counts: Arc::clone(&counts),
        };
        let accepting = tokio::spawn(door.keep(listener));
        Ok(Proxy { server, port: address.port(), weather, refusing, refuses, counts, accepting })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A DSN with `port=` of the server, changed to lead through this proxy.
    pub fn dsn(&self, dsn: &str) -> Result<String, Error> {
        let direct = format!("port={}", self.server.load(Ordering::Relaxed));
        if !dsn.contains(&direct) {
            return Err(Error::new(format!("there is no {direct} in the DSN")));
        }
        Ok(dsn.replace(&direct, &format!("port={}", self.port)))
    }

    /// Leads new connections to this port of 127.0.0.1 from now on.
    pub fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::Relaxed);
    }

    /// Connections that pass now.
    pub fn connections(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Connections that have reached the server so far.
    pub fn reached(&self) -> usize {
        self.counts.reached.load(Ordering::Relaxed)
    }

    /// Ends every connection there is. New ones are taken.
    pub fn cut(&self, end: End) {
        self.weather.send_modify(|weather| (weather.cuts, weather.end) = (weather.cuts + 1, Some(end)));
    }

    /// From now on everything is swallowed, on old and new connections, and nobody is told of an end. New connections are
    /// made as if all was well.
    pub fn black_hole(&self) {
        self.weather.send_modify(|weather| weather.black_hole = true);
    }

    /// From now on nothing passes this way; it waits, and is not lost.
    pub fn stall(&self, way: Way) {
        self.weather.send_modify(|weather| weather.stalled = Some(way));
    }

    /// New connections are refused, as if nobody listened. Old ones go on.
    pub async fn refuse(&self) -> Result<(), Error> {
        self.door(true).await
    }

    /// All is well again. What waited passes. A connection that has lost something in a black hole stays silent, and ends
    /// at the server once its client has given it up.
    pub async fn heal(&self) -> Result<(), Error> {
        self.weather.send_modify(|weather| (weather.black_hole, weather.stalled) = (false, None));
        self.door(false).await
    }

    async fn door(&self, refuse: bool) -> Result<(), Error> {
        self.refusing.send_replace(refuse);
        let done = self.refuses.clone().wait_for(|refuses| *refuses == refuse).await.map(drop);
        done.map_err(|cause| Error::because("the proxy has ended", &cause))
    }
}

/// What accepts connections.
struct Door {
    address: SocketAddr,
    server: Arc<AtomicU16>,
    weather: watch::Receiver<Weather>,
    told: watch::Receiver<bool>,
    telling: watch::Sender<bool>,
    counts: Arc<Counts>,
}

impl Door {
    async fn keep(mut self, mut listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((client, _)) = accepted {
                    let server = self.server.load(Ordering::Relaxed);
                    connections.spawn(pass(client, server, self.weather.clone(), Arc::clone(&self.counts)));
                },
                Some(_) = connections.join_next() => {}
                refuse = wait_for(&mut self.told, true) => {
                    if !refuse { return }
                    drop(listener);
                    // A bound port that nobody listens on refuses, and nobody else can take it.
                    let kept = bind(self.address).await;
                    self.telling.send_replace(true);
                    if !wait_for(&mut self.told, false).await { return }
                    let Ok(again) = kept.listen(1024) else { return };
                    listener = again;
                    self.telling.send_replace(false);
                }
            }
        }
    }
}

/// False if the proxy is gone.
async fn wait_for(told: &mut watch::Receiver<bool>, wanted: bool) -> bool {
    told.wait_for(|told| *told == wanted).await.is_ok()
}

/// The port was this proxy's a moment ago, so it is free as soon as the system has noticed.
async fn bind(address: SocketAddr) -> TcpSocket {
    loop {
        let bound = TcpSocket::new_v4().and_then(|socket| {
            socket.set_reuseaddr(true)?;
            socket.bind(address).map(|()| socket)
        });
        match bound {
            Ok(socket) => return socket,
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// How many connections there are now, and how many have reached the server.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    reached: AtomicUsize,
}

/// Counts a connection for as long as it passes.
struct Counted(Arc<Counts>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection, to its end.
async fn pass(mut client: TcpStream, server: u16, weather: watch::Receiver<Weather>, counts: Arc<Counts>) {
    counts.open.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(counts);
    if weather.borrow().black_hole {
        return hold(client, weather).await;
    }
    // A server that is down refuses, and what was accepted here is closed then.
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    counted.0.reached.fetch_add(1, Ordering::Relaxed);
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let cut = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let mut cuts = weather.clone();
        let before = cuts.borrow().cuts;
        tokio::select! {
            // Whichever side ends first ends both.
            () = forward(from_client, to_server, Way::ToServer, weather.clone()) => None,
            () = forward(from_server, to_client, Way::ToClient, weather) => None,
            cut = cuts.wait_for(|weather| weather.cuts != before) => cut.ok().and_then(|weather| weather.end),
        }
    };
    if cut == Some(End::Reset) {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// A connection that was made into the black hole leads nowhere, for as long as its client waits; but it can be cut.
async fn hold(mut client: TcpStream, mut weather: watch::Receiver<Weather>) {
    let before = weather.borrow().cuts;
    let mut nowhere = tokio::io::sink();
    let reset = tokio::select! {
        _ = tokio::io::copy(&mut client, &mut nowhere) => false,
        cut = weather.wait_for(|weather| weather.cuts != before) => {
            cut.is_ok_and(|weather| weather.end == Some(End::Reset))
        }
    };
    if reset {
        let _ = client.set_zero_linger();
    }
}

/// One direction. Returns when the sender has ended, and the receiver may be told.
async fn forward(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: Way, mut weather: watch::Receiver<Weather>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut lost = false;
    loop {
        let read = from.read(&mut buffer).await;
        if weather.wait_for(|weather| weather.black_hole || weather.stalled != Some(way)).await.is_err() {
            return;
        }
        let swallow = weather.borrow().black_hole;
        let bytes = match read {
            Ok(read @ 1..) => buffer.get(..read).unwrap_or_default(),
            // The end is as little told as anything else.
            _ if swallow => {
                let _ = weather.wait_for(|weather| !weather.black_hole).await;
                return;
            }
            _ => return,
        };
        lost |= swallow;
        if !lost && to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);
    const A_WHILE: Duration = Duration::from_millis(200);

    /// A server that answers each byte with itself, and tells how a connection ended.
    async fn echo() -> (u16, tokio::sync::mpsc::UnboundedReceiver<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (ended, ends) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let ended = ended.clone();
                tokio::spawn(async move {
                    let mut byte = [0];
                    let end = loop {
                        match stream.read(&mut byte).await {
                            Ok(0) => break Ok(()),
                            Ok(_) => stream.write_all(&byte).await.unwrap(),
                            Err(error) => break Err(error),
                        }
                    };
                    ended.send(end)
                });
            }
        });
        (port, ends)
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_all(&[byte]).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn passes_and_cuts_both_ways() {
        let (port, mut ends) = echo().await;
        let proxy = Proxy::start(port).await.unwrap();
        for (end, reset) in [(End::Reset, true), (End::Close, false)] {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
            assert_eq!(ask(&mut stream, 7).await.unwrap(), 7);
            assert_eq!(proxy.connections(), 1);
            assert_eq!(proxy.reached(), if reset { 1 } else { 2 });
            proxy.cut(end);
            let here = timeout(SOON, stream.read(&mut [0])).await.unwrap();
            let there = timeout(SOON, ends.recv()).await.unwrap().unwrap();
            assert_eq!((here.is_err(), there.is_err()), (reset, reset), "{here:?} {there:?}");
        }
    }

    #[tokio::test]
    async fn a_black_hole_swallows_and_tells_nobody() {
        let (port, mut ends) = echo().await;
        let proxy = Proxy::start(port).await.unwrap();
        let mut old = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        let mut closing = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!((ask(&mut old, 1).await.unwrap(), ask(&mut closing, 1).await.unwrap()), (1, 1));
        proxy.black_hole();
        let mut new = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        drop(closing);
        for stream in [&mut old, &mut new] {
            assert!(timeout(A_WHILE, ask(stream, 2)).await.is_err());
        }
        assert!(timeout(A_WHILE, ends.recv()).await.is_err(), "the server was told");
        proxy.heal().await.unwrap();
        assert!(timeout(SOON, ends.recv()).await.unwrap().unwrap().is_ok());
        assert!(timeout(A_WHILE, ask(&mut old, 3)).await.is_err(), "it has lost something");
        let mut fresh = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!(ask(&mut fresh, 4).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn what_is_stalled_is_not_lost() {
        let (port, _ends) = echo().await;
        let proxy = Proxy::start(port).await.unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        for way in [Way::ToServer, Way::ToClient] {
            proxy.stall(way);
            stream.write_all(&[5]).await.unwrap();
            assert!(timeout(A_WHILE, stream.read_u8()).await.is_err());
            proxy.heal().await.unwrap();
            assert_eq!(timeout(SOON, stream.read_u8()).await.unwrap().unwrap(), 5);
        }
    }

    #[tokio::test]
    async fn refuses_at_the_same_port_and_listens_again() {
        let (port, _ends) = echo().await;
        let proxy = Proxy::start(port).await.unwrap();
        let mut old = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!(ask(&mut old, 5).await.unwrap(), 5); // what was not accepted yet would be refused
        for _ in 0..3 {
            proxy.refuse().await.unwrap();
            let refused = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(ask(&mut old, 6).await.unwrap(), 6);
            proxy.heal().await.unwrap();
            let mut new = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
            assert_eq!(ask(&mut new, 8).await.unwrap(), 8);
        }
    }
}
