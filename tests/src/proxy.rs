//! A TCP proxy that treats its connections badly when told to.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Pieces of at most [`PIECE_BYTES`] that are under way in one direction of a connection. More than a slow way holds, and less than
/// would let a sender believe that all of a large file has arrived.
const PIECES: usize = 32;
const PIECE_BYTES: usize = 16 * 1024;

/// What happens to all connections at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// They are cut in both directions.
    Cut,
    /// No more bytes of the client reach the server, which takes it for the end.
    HalfCloseToServer,
    /// The client takes it that the server says nothing more.
    HalfCloseToClient,
    /// Nothing moves for so long; then all of it arrives.
    Stall(Duration),
    /// For so long new connections are closed at once, and the old ones are cut.
    Refuse(Duration),
}

#[derive(Default)]
struct State {
    /// Client's and server's side of each.
    connections: Vec<(TcpStream, TcpStream)>,
    stalled: bool,
    refusing: bool,
    /// How long each byte is under way, in each direction.
    delay: Duration,
    accepted: usize,
    /// Bytes that went to the server.
    sent: u64,
    /// When so many have, everything is cut, once.
    cut_at: Option<u64>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait_until_moving(&self) {
        let waited = self.changed.wait_while(self.lock(), |state| state.stalled);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn cut(&self, how: Shutdown) {
        for (client, _) in self.lock().connections.drain(..) {
            client.shutdown(how).ok(); // gone already
        }
    }

    /// How many of `count` bytes may go on to the server; fewer: the connections are cut there.
    fn passes(&self, count: usize) -> usize {
        let mut state = self.lock();
        let end = state.cut_at.unwrap_or(u64::MAX);
        let left = usize::try_from(end - state.sent.min(end)).unwrap_or(usize::MAX);
        let passing = count.min(left);
        state.sent += passing as u64;
        if passing < count {
            state.cut_at = None;
        }
        passing
    }
}

/// A running proxy; it lives as long as the test's process.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Passes connections on to `target`.
    pub fn to(target: SocketAddr) -> Result<Proxy> {
        Self::at(Ipv4Addr::LOCALHOST, target)
    }

    /// The same, listening on this loopback address: those who know machines by their addresses take two for two.
    pub fn at(address: Ipv4Addr, target: SocketAddr) -> Result<Proxy> {
        Self::listening(SocketAddr::from((address, 0)), target)
    }

    /// The same, listening there.
    pub fn listening(address: SocketAddr, target: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let all = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A refused or failed connection is what the proxy is for.
                pass_on(client, target, &all).ok();
            }
        });
        Ok(Proxy { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> IpAddr {
        self.address.ip()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of a database through the proxy, which must lead to the URL's server.
    pub fn through(&self, url: &str) -> Result<String> {
        let (before, after) = url.split_once('@').context("no user in the URL")?;
        let (_, path) = after.split_once('/').context("no database in the URL")?;
        Ok(format!("{before}@{}/{path}", self.address))
    }

    /// How many connections there were, those that were refused too.
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    /// How many bytes went to the server.
    pub fn sent(&self) -> u64 {
        self.shared.lock().sent
    }

    /// Cuts all connections in both directions.
    pub fn cut_all(&self) {
        self.shared.cut(Shutdown::Both);
    }

    /// Cuts all connections when so many more bytes have gone to the server; then goes on as before.
    pub fn cut_after(&self, bytes: u64) {
        self.shared
            .change(|state| state.cut_at = Some(state.sent + bytes));
    }

    /// Whether a cut that [`Proxy::cut_after`] asked for is still to come.
    pub fn will_cut(&self) -> bool {
        self.shared.lock().cut_at.is_some()
    }

    /// From now on each byte is under way for so long in each direction: half a round trip.
    pub fn delay(&self, delay: Duration) {
        self.shared.change(|state| state.delay = delay);
    }

    /// Each side of every connection takes it that the other says nothing more. The connections stay open.
    pub fn half_close(&self) {
        for (client, server) in &self.shared.lock().connections {
            for stream in [client, server] {
                stream.shutdown(Shutdown::Write).ok(); // gone already
            }
        }
    }

    /// While it is on, nothing moves and nobody is told.
    pub fn stall(&self, on: bool) {
        self.shared.change(|state| state.stalled = on);
    }

    /// While it is on, new connections are closed at once. Those that are there are cut.
    pub fn refuse(&self, on: bool) {
        self.shared.change(|state| state.refusing = on);
        if on {
            self.cut_all();
        }
    }

    /// Returns when it is over.
    pub fn cause(&self, fault: Fault) {
        match fault {
            Fault::Cut => self.cut_all(),
            Fault::HalfCloseToServer => {
                for (_, server) in &self.shared.lock().connections {
                    server.shutdown(Shutdown::Write).ok(); // gone already
                }
            }
            Fault::HalfCloseToClient => self.shared.cut(Shutdown::Write),
            Fault::Stall(duration) => {
                self.stall(true);
                thread::sleep(duration);
                self.stall(false);
            }
            Fault::Refuse(duration) => {
                self.refuse(true);
                thread::sleep(duration);
                self.refuse(false);
            }
        }
    }
}

/// A way that bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

fn pass_on(client: TcpStream, target: SocketAddr, shared: &Arc<Shared>) -> Result<()> {
    shared.change(|state| state.accepted += 1);
    if shared.lock().refusing {
        return Ok(());
    }
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pair = (client.try_clone()?, server.try_clone()?);
    shared.change(|state| state.connections.push(pair));
    for (direction, from, to) in [
        (Direction::ToServer, client.try_clone()?, server.try_clone()?),
        (Direction::ToClient, server, client),
    ] {
        let (pieces, way) = sync_channel(PIECES);
        let (from_too, ours, theirs) = (from.try_clone()?, Arc::clone(shared), Arc::clone(shared));
        thread::spawn(move || collect(from, &pieces, &ours));
        thread::spawn(move || deliver(&way, direction, &from_too, to, &theirs));
    }
    Ok(())
}

/// What was read, and when it arrives.
type Piece = (Instant, Vec<u8>);

fn collect(mut from: TcpStream, pieces: &SyncSender<Piece>, shared: &Shared) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let arrives = Instant::now() + shared.lock().delay;
        if pieces.send((arrives, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Until either side ends; then both do.
fn deliver(
    way: &Receiver<Piece>,
    direction: Direction,
    from: &TcpStream,
    mut to: TcpStream,
    shared: &Shared,
) {
    for (arrives, piece) in way {
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        shared.wait_until_moving();
        let passing = match direction {
            Direction::ToServer => shared.passes(piece.len()),
            Direction::ToClient => piece.len(),
        };
        if to.write_all(&piece[..passing]).is_err() {
            break;
        }
        if passing < piece.len() {
            shared.cut(Shutdown::Both);
            break;
        }
    }
    shared.wait_until_moving();
    from.shutdown(Shutdown::Both).ok(); // gone already
    to.shutdown(Shutdown::Both).ok();
}

/// Faults in an order that the seed decides.
pub fn plan(seed: u64, count: usize) -> Vec<Fault> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = |bound: u64| {
        // Constants of Knuth's MMIX; the high bits are the good ones.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    (0..count)
        .map(|_| match next(5) {
            0 => Fault::Cut,
            1 => Fault::HalfCloseToServer,
            2 => Fault::HalfCloseToClient,
            3 => Fault::Stall(Duration::from_millis(next(800))),
            _ => Fault::Refuse(Duration::from_millis(next(800))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_every_fault_and_is_the_same_for_the_same_seed() {
        let faults = plan(7, 40);
        assert_eq!(faults, plan(7, 40));
        let has = |wanted: fn(&Fault) -> bool| faults.iter().any(wanted);
        assert!(has(|fault| *fault == Fault::Cut) && has(|fault| *fault == Fault::HalfCloseToClient));
        assert!(
            has(|fault| matches!(fault, Fault::Stall(_))) && has(|fault| matches!(fault, Fault::Refuse(_)))
        );
    }

    /// Sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut from = stream.try_clone().unwrap();
                    std::io::copy(&mut from, &mut stream).ok();
                    stream.shutdown(Shutdown::Write).ok();
                });
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect((proxy.address(), proxy.port())).unwrap()
    }

    fn answer(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(text)?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn bytes_are_late_counted_and_cut_where_it_was_said() {
        let proxy = Proxy::to(echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(answer(&mut stream, b"hello").unwrap(), b"hello");
        proxy.delay(Duration::from_millis(50));
        let begun = Instant::now();
        assert_eq!(answer(&mut stream, b"late").unwrap(), b"late");
        assert!(begun.elapsed() >= Duration::from_millis(100));
        proxy.delay(Duration::ZERO);
        assert_eq!((proxy.sent(), proxy.accepted()), (9, 1));
        proxy.cut_after(3);
        assert!(proxy.will_cut());
        assert!(answer(&mut stream, b"too much").is_err());
        assert_eq!((proxy.sent(), proxy.will_cut()), (12, false));
        assert_eq!(answer(&mut connect(&proxy), b"again").unwrap(), b"again");
    }

    #[test]
    fn connections_are_cut_refused_and_half_closed() {
        let proxy = Proxy::to(echo()).unwrap();
        let mut stream = connect(&proxy);
        answer(&mut stream, b"1").unwrap();
        proxy.cut_all();
        assert!(answer(&mut stream, b"2").is_err());
        proxy.refuse(true);
        assert!(answer(&mut connect(&proxy), b"3").is_err());
        proxy.refuse(false);
        let mut stream = connect(&proxy);
        answer(&mut stream, b"4").unwrap();
        proxy.half_close();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}
