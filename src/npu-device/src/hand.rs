//! A thread that waits for work and is lent what its caller borrows.
//!
//! ```text
//! caller: lend ──▶ own work ──▶ wait      Idle ─▶ Lent ─▶ Busy ─▶ Idle
//! hand:       take ──▶ lent work ──▶ done
//! ```
//!
//! A scoped thread of the standard library is started anew for every call and allocates; this one is parked in between,
//! and handing work over is a lock and a wake.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A thread that works when it is asked to. It ends when this is dropped.
#[derive(Debug)]
pub struct Hand {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// One side waits at a time: the thread for work, or the caller for its end.
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// Work that the thread has not taken yet. It catches its panics.
    Lent(&'static mut (dyn FnMut() + Send)),
    Busy,
    Leaving,
}

impl Hand {
    /// Starts a thread.
    ///
    /// # Errors
    /// What the system says where it has no more threads.
    pub fn new(name: &str) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || own.serve())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Runs `there` on the hand's thread and `here` on this one, and returns when both have ended. Nothing is allocated.
    ///
    /// # Errors
    /// The first result is what `there` panicked with, if it did.
    ///
    /// # Panics
    /// Where `here` panics, after `there` has ended.
    pub fn join<A: Send, B>(
        &mut self,
        there: impl FnOnce() -> A + Send,
        here: impl FnOnce() -> B,
    ) -> (thread::Result<A>, B) {
        let (mut there, mut outcome) = (Some(there), None);
        let mut work = || outcome = there.take().map(|there| catch_unwind(AssertUnwindSafe(there)));
        let work: &mut (dyn FnMut() + Send) = &mut work;
        // SAFETY: only the lifetime changes. The thread lets go of the reference before it sets the state to idle; the loan
        // waits for that when it is dropped, which is before this function returns or unwinds; and until then nothing
        // here touches what the work borrows.
        let work = unsafe { std::mem::transmute::<&mut (dyn FnMut() + Send), &'static mut (dyn FnMut() + Send)>(work) };
        let loan = self.shared.lend(work);
        let here = here();
        drop(loan);
        // PANIC: the thread has done the work, whose panics are results too.
        (outcome.expect("the work was done"), here)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.shared.set(State::Leaving);
        // The thread catches what it runs, so there is nothing to tell.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every state is whole: nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_one();
    }

    fn lend(&self, work: &'static mut (dyn FnMut() + Send)) -> Loan<'_> {
        self.set(State::Lent(work));
        Loan(self)
    }

    /// Takes work until there will be none.
    fn serve(&self) {
        loop {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Busy) {
                State::Lent(work) => {
                    drop(state);
                    work();
                    self.set(State::Idle);
                }
                State::Leaving => return,
                State::Idle | State::Busy => {
                    *state = State::Idle;
                    drop(self.wait(state));
                }
            }
        }
    }
}

/// Work that a thread has. It is waited for where this is dropped.
struct Loan<'a>(&'a Shared);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        while !matches!(*state, State::Idle) {
            state = self.0.wait(state);
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "Idle",
            Self::Lent(_) => "Lent",
            Self::Busy => "Busy",
            Self::Leaving => "Leaving",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn both_sides_run_at_once_and_use_what_the_caller_has() {
        let mut hand = Hand::new("hand").unwrap();
        let (mut left, mut right) = (vec![0; 3], vec![0; 3]);
        // Neither side gets on without the other.
        let both = Barrier::new(2);
        for call in 1..100 {
            let there = || {
                both.wait();
                left.fill(call);
                thread::current().id()
            };
            let here = || {
                both.wait();
                right.fill(call);
            };
            let (there, ()) = hand.join(there, here);
            assert_ne!(there.unwrap(), thread::current().id());
            assert_eq!([&left, &right], [&[call; 3]; 2]);
        }
    }

    #[test]
    fn a_panic_of_the_hand_is_a_result_and_it_works_on() {
        let mut hand = Hand::new("hand").unwrap();
        let (there, here) = hand.join(|| -> u32 { panic!("no") }, || 1);
        assert_eq!((there.unwrap_err().downcast_ref::<&str>(), here), (Some(&"no"), 1));
        assert_eq!(hand.join(|| 2, || 3).0.unwrap(), 2);
    }

    #[test]
    fn a_panic_of_the_caller_waits_for_the_hand() {
        let mut hand = Hand::new("hand").unwrap();
        let (both, mut done) = (Barrier::new(2), false);
        let there = || {
            both.wait();
            done = true;
        };
        let here = || -> u32 {
            both.wait();
            panic!("no")
        };
        let call = AssertUnwindSafe(|| hand.join(there, here));
        assert!(catch_unwind(call).is_err());
        assert!(done, "the work had ended before its variables did");
        assert_eq!(hand.join(|| 2, || 3).0.unwrap(), 2);
    }
}
