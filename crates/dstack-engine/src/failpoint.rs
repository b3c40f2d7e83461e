//! Named places at which a test kills the engine: before and after each commit and each call to an agent.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use crate::{EngineError, Result};

/// Decides, at each named place, whether the process dies there.
pub trait Failpoints: Send + Sync + Debug {
    /// `Err` = die here. Real processes abort instead of returning.
    fn reached(&self, name: &'static str) -> Result<()>;
}

/// No failures: production.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFailpoints;

impl Failpoints for NoFailpoints {
    fn reached(&self, _name: &'static str) -> Result<()> {
        Ok(())
    }
}

/// Dies at the n-th time that one place is reached, and remembers which places were seen.
#[derive(Debug, Default)]
pub struct DieAt {
    state: Mutex<DieAtState>,
}

#[derive(Debug, Default)]
struct DieAtState {
    target: Option<(String, u32)>,
    seen: BTreeSet<&'static str>,
}

impl DieAt {
    /// Dies when `name` is reached for the `nth` time (from 1).
    pub fn new(name: impl Into<String>, nth: u32) -> Self {
        Self {
            state: Mutex::new(DieAtState {
                target: Some((name.into(), nth)),
                seen: BTreeSet::new(),
            }),
        }
    }

    /// All places reached so far.
    pub fn seen(&self) -> BTreeSet<&'static str> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .seen
            .clone()
    }

    /// Whether the place was reached.
    pub fn fired(&self) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .target
            .is_none()
    }
}

impl Failpoints for DieAt {
    fn reached(&self, name: &'static str) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen.insert(name);
        if let Some((target, left)) = &mut state.target
            && target == name
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.target = None;
                return Err(EngineError::Killed(name));
            }
        }
        Ok(())
    }
}

/// Aborts the whole process at the n-th time that one place is reached: for kill tests of the real binary.
/// Written `NAME:N` in `DSTACK_FAILPOINT`.
#[derive(Debug)]
pub struct AbortAt(DieAt);

impl AbortAt {
    /// Parses `NAME:N`; `N` defaults to 1.
    pub fn parse(text: &str) -> Self {
        let (name, nth) = text
            .rsplit_once(':')
            .and_then(|(name, n)| Some((name, n.parse().ok()?)))
            .unwrap_or((text, 1));
        Self(DieAt::new(name, nth))
    }
}

impl Failpoints for AbortAt {
    fn reached(&self, name: &'static str) -> Result<()> {
        if self.0.reached(name).is_err() {
            std::process::abort();
        }
        Ok(())
    }
}
