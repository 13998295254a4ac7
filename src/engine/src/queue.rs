//! The bounded queue between callers and workers.
//!
//! Requests wait in one lane per priority. Commands (load, unload) wait in a lane per worker and go first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Error, Priority, Result};

/// Lanes, best first.
const PRIORITIES: [Priority; 3] = [Priority::Interactive, Priority::Stream, Priority::Batch];

/// Something that may have become pointless while it waited.
pub(crate) trait Abandon {
    /// Whether nobody waits for it any more.
    fn is_abandoned(&self) -> bool;
}

/// A bounded queue of requests `R` and per-worker commands `C`.
#[derive(Debug)]
pub(crate) struct Queue<R, C> {
    state: Mutex<State<R, C>>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<R, C> {
    lanes: [VecDeque<R>; 3],
    commands: Vec<VecDeque<C>>,
    closed: bool,
}

/// What a worker finds.
#[derive(Debug)]
pub(crate) enum Next<R, C> {
    /// A request.
    Request(R),
    /// A command for this worker.
    Command(C),
    /// Nothing within the time.
    Idle,
    /// The queue is closed and empty.
    Closed,
}

impl<R: Abandon, C> Queue<R, C> {
    pub(crate) fn new(capacity: usize, workers: usize) -> Self {
        let state = State {
            lanes: Default::default(),
            commands: (0..workers).map(|_| VecDeque::new()).collect(),
            closed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Requests that wait.
    pub(crate) fn depth(&self) -> usize {
        self.lock().depth()
    }

    /// Appends a request to its lane.
    pub(crate) fn push(&self, request: R, priority: Priority) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::Busy("the engine is shutting down".into()));
        }
        if state.depth() >= self.capacity {
            for lane in &mut state.lanes {
                lane.retain(|waiting| !waiting.is_abandoned());
            }
        }
        if state.depth() >= self.capacity {
            return Err(Error::QueueFull { capacity: self.capacity });
        }
        state.lanes[lane(priority)].push_back(request);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Gives every worker a command; `command` makes the one for worker `n`.
    pub(crate) fn command(&self, mut command: impl FnMut(usize) -> C) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::Busy("the engine is shutting down".into()));
        }
        for (worker, lane) in state.commands.iter_mut().enumerate() {
            lane.push_back(command(worker));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes what `worker` does next, waiting at most `patience`.
    pub(crate) fn pop(&self, worker: usize, patience: Duration) -> Next<R, C> {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.lock(), patience, |state| !state.closed && !state.has_work(worker))
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(command) = state.commands[worker].pop_front() {
            return Next::Command(command);
        }
        if let Some(request) = state.lanes.iter_mut().find_map(VecDeque::pop_front) {
            return Next::Request(request);
        }
        if state.closed { Next::Closed } else { Next::Idle }
    }

    /// Refuses new work. What waits is still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<R, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R, C> State<R, C> {
    fn depth(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    fn has_work(&self, worker: usize) -> bool {
        self.depth() > 0 || !self.commands[worker].is_empty()
    }
}

fn lane(priority: Priority) -> usize {
    PRIORITIES.iter().position(|p| *p == priority).expect("every priority has a lane")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Abandon for (u32, bool) {
        fn is_abandoned(&self) -> bool {
            self.1
        }
    }

    const NOW: Duration = Duration::ZERO;

    fn queue(capacity: usize) -> Queue<(u32, bool), &'static str> {
        Queue::new(capacity, 2)
    }

    fn pop(queue: &Queue<(u32, bool), &'static str>) -> Option<u32> {
        match queue.pop(0, NOW) {
            Next::Request(request) => Some(request.0),
            _ => None,
        }
    }

    #[test]
    fn interactive_requests_overtake_batch_requests() {
        let queue = queue(4);
        queue.push((1, false), Priority::Batch).unwrap();
        queue.push((2, false), Priority::Stream).unwrap();
        queue.push((3, false), Priority::Interactive).unwrap();
        queue.push((4, false), Priority::Interactive).unwrap();
        assert_eq!([pop(&queue), pop(&queue), pop(&queue), pop(&queue)], [Some(3), Some(4), Some(2), Some(1)]);
    }

    #[test]
    fn a_full_queue_refuses_at_once() {
        let queue = queue(1);
        queue.push((1, false), Priority::Batch).unwrap();
        assert!(matches!(queue.push((2, false), Priority::Interactive), Err(Error::QueueFull { capacity: 1 })));
    }

    #[test]
    fn abandoned_requests_make_room() {
        let queue = queue(1);
        queue.push((1, true), Priority::Batch).unwrap();
        queue.push((2, false), Priority::Batch).unwrap();
        assert_eq!(pop(&queue), Some(2));
    }

    #[test]
    fn commands_reach_every_worker_and_go_first() {
        let queue = queue(1);
        queue.push((1, false), Priority::Batch).unwrap();
        queue.command(|_| "load").unwrap();
        assert!(matches!(queue.pop(0, NOW), Next::Command("load")));
        assert!(matches!(queue.pop(1, NOW), Next::Command("load")));
        assert!(matches!(queue.pop(1, NOW), Next::Request((1, false))));
        assert!(matches!(queue.pop(1, NOW), Next::Idle));
    }

    #[test]
    fn a_closed_queue_serves_what_waits_and_takes_nothing_new() {
        let queue = queue(2);
        queue.push((1, false), Priority::Batch).unwrap();
        queue.close();
        assert!(matches!(queue.push((2, false), Priority::Batch), Err(Error::Busy(_))));
        assert_eq!(pop(&queue), Some(1));
        assert!(matches!(queue.pop(0, NOW), Next::Closed));
    }
}
