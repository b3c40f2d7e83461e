//! A mutex that goes on after a panic.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a mutex that is held for short, synchronous work only.
///
/// A panic while it is held does not poison it: the panic is logged and counted where the task ends (`task::spawn`), and
/// one broken request must not end all others. Change the value in steps that leave it valid at each of them.
#[derive(Default)]
pub struct Locked<T: ?Sized>(Mutex<T>);

impl<T> Locked<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Locked<T> {
    /// Waits for the lock. Never hold the guard over an `await`.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value without locking: nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> From<T> for Locked<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_one_holder_does_not_stop_the_others() {
        let value = Locked::new(1);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut held = value.lock();
            *held = 2;
            panic!("on purpose");
        }));
        assert!(outcome.is_err());
        assert_eq!(*value.lock(), 2);
        assert_eq!(value.into_inner(), 2);
    }
}
