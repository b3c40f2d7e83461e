//! Clients that are about to attach to a run.
//!
//! The command line of dstack 0.22.5 asks for its run until that runs, then connects to the job over SSH and reads its output
//! from there; a job that is over by then cannot be connected to, and the command fails. So a job that such a client
//! waits for is kept a moment longer after its commands have ended: until the client has read everything, or has asked for
//! the run once more, which it does only when it does not attach.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_plan::lifecycle::job::ToldClient;
use dstack_units::{RunId, Time};

/// From the submission to the first question, a second later; with `--detach` there is none.
const FIRST_QUESTION: Duration = Duration::from_secs(4);
/// The client asks every second at first, every five seconds later.
const NEXT_QUESTION: Duration = Duration::from_secs(7);
/// From being told that the run runs until it is connected.
const TO_CONNECT: Duration = Duration::from_secs(15);
/// More entries than this are looked through for those that are out of date.
const MANY: usize = 1_000;

/// What a client knows of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// When it submitted it.
    Submitted(Time),
    /// When it was told last that it cannot attach yet.
    Waits(Time),
    /// When it was told that it can.
    Attaches(Time),
    /// It asked again after that.
    Stays,
}

impl Client {
    fn until(self) -> Option<Time> {
        match self {
            Self::Submitted(at) => Some(at + FIRST_QUESTION),
            Self::Waits(at) => Some(at + NEXT_QUESTION),
            Self::Attaches(at) => Some(at + TO_CONNECT),
            Self::Stays => None,
        }
    }
}

/// What clients have been told lately.
#[derive(Debug, Default)]
pub struct Attendance(Mutex<HashMap<RunId, Client>>);

impl Attendance {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is told something of a run. Returns whether nobody has to be waited for any more.
    pub fn told(&self, run: RunId, what: ToldClient, now: Time) -> bool {
        let mut clients = self.lock();
        if clients.len() >= MANY {
            clients.retain(|_, client| client.until().is_some_and(|until| until > now));
        }
        let next = match (clients.get(&run), what) {
            (_, ToldClient::Submitted) => Client::Submitted(now),
            (_, ToldClient::NotYet) => Client::Waits(now),
            (None | Some(Client::Submitted(_) | Client::Waits(_)), ToldClient::Nothing) => Client::Waits(now),
            (Some(known), ToldClient::Nothing) => *known,
            (Some(Client::Attaches(_) | Client::Stays), ToldClient::Running) => Client::Stays,
            (_, ToldClient::Running) => Client::Attaches(now),
        };
        clients.insert(run, next);
        next == Client::Stays
    }

    /// Until when a job of the run is kept for a client that is about to attach.
    pub fn until(&self, run: RunId) -> Option<Time> {
        self.lock().get(&run).copied().and_then(Client::until)
    }

    /// The run is over.
    pub fn forget(&self, run: RunId) {
        self.lock().remove(&run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn run(number: u128) -> RunId {
        RunId::new(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn a_client_is_waited_for_until_it_has_had_time_to_connect() {
        let attendance = Attendance::default();
        assert_eq!(attendance.until(run(1)), None);
        assert!(!attendance.told(run(1), ToldClient::Submitted, at(0)));
        assert_eq!(attendance.until(run(1)), Some(at(0) + FIRST_QUESTION));
        assert!(!attendance.told(run(1), ToldClient::NotYet, at(0)));
        assert!(!attendance.told(run(1), ToldClient::NotYet, at(1)));
        assert_eq!(attendance.until(run(1)), Some(at(8)));
        assert!(!attendance.told(run(1), ToldClient::Running, at(2)));
        assert_eq!(attendance.until(run(1)), Some(at(17)));
        assert_eq!(attendance.until(run(2)), None);
        attendance.forget(run(1));
        assert_eq!(attendance.until(run(1)), None);
    }

    #[test]
    fn a_client_that_asks_again_does_not_attach() {
        let attendance = Attendance::default();
        attendance.told(run(1), ToldClient::Nothing, at(0));
        assert_eq!(attendance.until(run(1)), Some(at(7)));
        attendance.told(run(1), ToldClient::Running, at(0));
        attendance.told(run(1), ToldClient::Nothing, at(1));
        assert_eq!(attendance.until(run(1)), Some(at(15)));
        assert!(attendance.told(run(1), ToldClient::Running, at(1)));
        assert_eq!(attendance.until(run(1)), None);
        // Of its next attempt.
        attendance.told(run(1), ToldClient::NotYet, at(60));
        assert_eq!(attendance.until(run(1)), Some(at(67)));
    }

    #[test]
    fn what_is_out_of_date_is_forgotten() {
        let attendance = Attendance::default();
        for number in 0..MANY {
            attendance.told(run(number as u128), ToldClient::NotYet, at(0));
        }
        attendance.told(run(5_000), ToldClient::NotYet, at(60));
        assert_eq!(attendance.lock().len(), 1);
    }
}
