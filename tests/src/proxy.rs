//! A TCP proxy that treats its connections badly when told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

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
}

/// A running proxy; it lives as long as the test's process.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Passes connections on to `target`.
    pub fn to(target: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let all = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A refused or failed connection is what the proxy is for.
                pass_on(client, target, &all).ok();
            }
        });
        Ok(Proxy { port, shared })
    }

    /// The URL of a database through the proxy, which must lead to the URL's server.
    pub fn through(&self, url: &str) -> Result<String> {
        let (before, after) = url.split_once('@').context("no user in the URL")?;
        let (_, path) = after.split_once('/').context("no database in the URL")?;
        Ok(format!("{before}@127.0.0.1:{}/{path}", self.port))
    }

    /// Returns when it is over.
    pub fn cause(&self, fault: Fault) {
        match fault {
            Fault::Cut => self.cut(Shutdown::Both),
            Fault::HalfCloseToServer => {
                for (_, server) in &self.shared.lock().connections {
                    server.shutdown(Shutdown::Write).ok(); // gone already
                }
            }
            Fault::HalfCloseToClient => self.cut(Shutdown::Write),
            Fault::Stall(duration) => {
                self.shared.change(|state| state.stalled = true);
                thread::sleep(duration);
                self.shared.change(|state| state.stalled = false);
            }
            Fault::Refuse(duration) => {
                self.shared.change(|state| state.refusing = true);
                self.cut(Shutdown::Both);
                thread::sleep(duration);
                self.shared.change(|state| state.refusing = false);
            }
        }
    }

    fn cut(&self, how: Shutdown) {
        for (client, _) in self.shared.lock().connections.drain(..) {
            client.shutdown(how).ok(); // gone already
        }
    }
}

fn pass_on(client: TcpStream, target: SocketAddr, shared: &Arc<Shared>) -> Result<()> {
    if shared.lock().refusing {
        return Ok(());
    }
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pair = (client.try_clone()?, server.try_clone()?);
    shared.change(|state| state.connections.push(pair));
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let shared = Arc::clone(shared);
        thread::spawn(move || copy(from, to, &shared));
    }
    Ok(())
}

/// Until either side ends; then both do.
fn copy(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        shared.wait_until_moving();
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
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
}
