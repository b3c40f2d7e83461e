//! What calls are signed with: a key of the configuration or what this machine has, or, where the configuration names a role, what STS
//! gives for it. That ends after a while ([`Session`]), is kept in memory alone, and is asked for again before its end.

use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_compute::config::AwsCreds;
use dstack_credentials::aws::Keys as MachineKeys;
use dstack_system::Secret;
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use tokio::sync::Mutex;

use crate::errors::AwsError;
use crate::signing::AccessKey;

/// A session is renewed when this part of its life is left: ten minutes of the hour that sessions have.
const RENEWED_AT: u32 = 6;

/// A session that ends so soon is not used any more.
const MARGIN: Duration = Duration::from_secs(60);

/// Pause after a renewal that failed while the session still was good.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);

/// The keys of the configuration.
#[derive(Debug)]
pub(crate) enum OwnKeys {
    Given(AccessKey),
    ThisMachine(MachineKeys),
}

impl OwnKeys {
    /// Nothing is looked for yet.
    pub(crate) fn of(creds: &AwsCreds) -> Result<Self, String> {
        match creds {
            AwsCreds::AccessKey(key) => Ok(Self::Given(AccessKey {
                id: key.access_key.expose().to_owned(),
                secret: Secret::new(key.secret_key.expose()),
                session_token: None,
            })),
            AwsCreds::Default(_) => {
                let keys = MachineKeys::of_this_machine().map_err(|error| error.to_string())?;
                Ok(Self::ThisMachine(keys))
            }
        }
    }

    /// Good for now; why there are none.
    pub(crate) async fn current(&self) -> Result<AccessKey, String> {
        match self {
            Self::Given(key) => Ok(key.clone()),
            Self::ThisMachine(keys) => {
                let found = keys.current().await.map_err(|error| error.to_string())?;
                Ok(AccessKey {
                    id: found.access_key_id,
                    secret: Secret::new(found.secret_access_key),
                    session_token: found.session_token.map(Secret::new),
                })
            }
        }
    }
}

/// What STS gave for a role.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) key: AccessKey,
    pub(crate) ends_at: Time,
}

/// The last session of a role. Of those who need one at the same time, one asks for it.
#[derive(Debug)]
pub(crate) struct RoleSessions {
    clock: SharedClock,
    kept: StdMutex<Kept>,
    asking: Mutex<()>,
}

#[derive(Debug, Default)]
struct Kept {
    session: Option<Session>,
    renew_at: Time,
    /// How often STS has answered.
    answers: u64,
    /// The last answer, if it was none.
    failure: Option<AwsError>,
}

impl RoleSessions {
    /// Without a session: who needs a key first asks STS for one.
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self {
            clock,
            kept: StdMutex::default(),
            asking: Mutex::default(),
        }
    }

    /// The key of a session that is good for now. `assume` asks STS for one, if that has to be.
    pub(crate) async fn key(
        &self,
        assume: impl Future<Output = Result<Session, AwsError>> + Send,
    ) -> Result<AccessKey, AwsError> {
        let (good, is_fresh, answers) = {
            let kept = self.lock();
            let now = self.clock.now();
            let good = kept.session.as_ref().filter(|one| now + MARGIN < one.ends_at);
            (good.map(|one| one.key.clone()), now < kept.renew_at, kept.answers)
        };
        let _asking = match good {
            Some(key) if is_fresh => return Ok(key),
            // The others go on with what is good while one renews it.
            Some(ref key) => match self.asking.try_lock() {
                Ok(asking) => asking,
                Err(_) => return Ok(key.clone()),
            },
            None => self.asking.lock().await,
        };
        if let Some(told) = self.told_since(answers) {
            return told;
        }
        let answer = assume.await;
        self.keep(answer, good)
    }

    /// AWS does not take the session with this key any more. One that came after it stays.
    pub(crate) fn forget(&self, used: &AccessKey) {
        let mut kept = self.lock();
        kept.session.take_if(|session| session.key.id == used.id);
    }

    /// What those have been told who asked while this one waited.
    fn told_since(&self, answers: u64) -> Option<Result<AccessKey, AwsError>> {
        let kept = self.lock();
        if kept.answers == answers {
            return None;
        }
        match (&kept.failure, &kept.session) {
            (Some(error), None) => Some(Err(error.clone())),
            (_, Some(session)) => Some(Ok(session.key.clone())),
            // It was forgotten again.
            (None, None) => None,
        }
    }

    /// `good`: the key of the session before it, as long as that can be used.
    fn keep(
        &self,
        answer: Result<Session, AwsError>,
        good: Option<AccessKey>,
    ) -> Result<AccessKey, AwsError> {
        let mut kept = self.lock();
        let now = self.clock.now();
        kept.answers += 1;
        match answer {
            Ok(session) => {
                let key = session.key.clone();
                kept.renew_at = session.ends_at - session.ends_at.since(now) / RENEWED_AT;
                kept.failure = None;
                kept.session = Some(session);
                Ok(key)
            }
            Err(error) => {
                kept.failure = Some(error.clone());
                let Some(key) = good else {
                    kept.session = None;
                    return Err(error);
                };
                tracing::warn!(%error, "a role of AWS cannot be assumed again: what it gave is used until its end");
                kept.renew_at = now + RENEWAL_PAUSE;
                Ok(key)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dstack_system::Clock as _;
    use dstack_system::clock::VirtualClock;
    use futures_util::future::join_all;

    use super::*;

    struct Sts {
        clock: Arc<VirtualClock>,
        sessions: RoleSessions,
        asked: AtomicU32,
    }

    impl Sts {
        fn new() -> Self {
            let clock = Arc::new(VirtualClock::starting_at(Time::from_millis(0)));
            Self {
                sessions: RoleSessions::new(Arc::clone(&clock) as SharedClock),
                clock,
                asked: AtomicU32::new(0),
            }
        }

        /// The ids of the keys that fifty callers get, each of which is told once: `refuses` is what STS says.
        async fn fifty(&self, refuses: bool) -> Vec<Result<String, AwsError>> {
            let all = (0..50).map(|_| async {
                let key = self.sessions.key(self.assume(refuses)).await;
                key.map(|key| key.id)
            });
            let mut told = join_all(all).await;
            told.dedup();
            told
        }

        async fn assume(&self, refuses: bool) -> Result<Session, AwsError> {
            let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::time::sleep(Duration::from_secs(5)).await;
            match refuses {
                true => Err(AwsError::without_keys("sts:AssumeRole", &number.to_string())),
                false => Ok(Session {
                    key: AccessKey {
                        id: number.to_string(),
                        secret: Secret::new("s"),
                        session_token: None,
                    },
                    ends_at: self.clock.now() + Duration::from_secs(3600),
                }),
            }
        }
    }

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(60 * count)
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_who_need_a_session_one_asks_and_all_are_told_the_answer() {
        let sts = Sts::new();
        for number in ["1", "2"] {
            let refused = Err(AwsError::without_keys("sts:AssumeRole", number));
            assert_eq!(sts.fifty(true).await, [refused]);
        }
        assert_eq!(sts.fifty(false).await, [Ok("3".to_owned())]);
        tokio::time::sleep(minutes(49)).await;
        assert_eq!(sts.fifty(false).await, [Ok("3".to_owned())]);
    }

    /// One renews, and the others go on; where that fails, all do, and it is tried again after a pause.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_still_is_good_is_renewed_while_others_use_it() {
        let sts = Sts::new();
        sts.fifty(false).await;
        tokio::time::sleep(minutes(51)).await;
        for _ in 0..2 {
            assert_eq!(sts.fifty(true).await, [Ok("1".to_owned())]);
        }
        assert_eq!(sts.asked.load(Ordering::Relaxed), 2);
        tokio::time::sleep(minutes(2)).await;
        let renewed = [Ok("3".to_owned()), Ok("1".to_owned())];
        assert_eq!(sts.fifty(false).await, renewed);
        assert_eq!(sts.fifty(true).await, [Ok("3".to_owned())]);
        // Past its end.
        tokio::time::sleep(minutes(61)).await;
        assert!(sts.fifty(true).await.iter().all(Result::is_err));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_not_taken_is_not_used_again_and_its_successor_stays() {
        let sts = Sts::new();
        let first = sts.sessions.key(sts.assume(false)).await.unwrap();
        sts.sessions.forget(&first);
        let second = sts.sessions.key(sts.assume(false)).await.unwrap();
        sts.sessions.forget(&first);
        let kept = sts.sessions.key(sts.assume(false)).await.unwrap();
        assert_eq!(
            (first.id.as_str(), second.id, kept.id),
            ("1", "2".to_owned(), "2".to_owned())
        );
    }
}
