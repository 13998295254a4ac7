//! One request at a time, first come, first served: cores and GPU are the same for all models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use api::{ErrorCode, Failure, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    turn: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    capacity: usize,
}

/// The right to work. The next request works when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// A place in the queue, left when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Queue,
    /// Requests before this one, with the one that works.
    pub(crate) before: usize,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), waiting: Arc::default(), capacity }
    }

    /// Requests that wait.
    pub(crate) fn depth(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Requests that may wait.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes a place.
    ///
    /// # Errors
    /// `QueueFull`.
    pub(crate) fn enter(&self) -> Result<Place> {
        let admitted = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < self.capacity).then_some(waiting + 1)
        });
        let waiting = admitted.map_err(|_| {
            Failure::new(ErrorCode::QueueFull, format!("the queue of {} requests is full", self.capacity))
        })?;
        let works = 1 - self.turn.available_permits().min(1);
        Ok(Place { queue: self.clone(), before: waiting + works })
    }
}

impl Place {
    /// Waits for the turn.
    ///
    /// # Errors
    /// `DeadlineExceeded`.
    pub(crate) async fn turn(self, deadline: Instant) -> Result<Turn> {
        let turn = tokio::time::timeout_at(deadline.into(), Arc::clone(&self.queue.turn).acquire_owned()).await;
        let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed in the queue");
        // PANIC: nobody closes the semaphore.
        Ok(Turn { _permit: turn.map_err(|_| late())?.expect("the semaphore is open") })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn requests_work_one_after_another_in_their_order() {
        let queue = Queue::new(4);
        let first = queue.enter().unwrap().turn(later()).await.unwrap();
        let (order, mut done) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..3 {
            let place = queue.enter().unwrap();
            assert_eq!(place.before, number + 1);
            let order = order.clone();
            let turn = async move {
                let _turn = place.turn(later()).await.unwrap();
                order.send(number).unwrap();
            };
            // Polled once, so that it waits before the next one comes.
            let mut turn = Box::pin(turn);
            assert!(futures_poll(turn.as_mut()).await);
            tokio::spawn(turn);
        }
        assert_eq!(queue.depth(), 3);
        drop(first);
        for number in 0..3 {
            assert_eq!(done.recv().await, Some(number));
        }
        assert_eq!(queue.depth(), 0);
    }

    /// Whether a future waits when it is polled once.
    async fn futures_poll(mut future: std::pin::Pin<&mut impl Future>) -> bool {
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn a_full_queue_and_a_passed_deadline_are_refused() {
        let queue = Queue::new(1);
        let turn = queue.enter().unwrap().turn(later()).await.unwrap();
        let place = queue.enter().unwrap();
        assert_eq!(queue.enter().unwrap_err().code, ErrorCode::QueueFull);
        assert_eq!(place.turn(Instant::now()).await.unwrap_err().code, ErrorCode::DeadlineExceeded);
        // Whoever gives up makes room.
        let place = queue.enter().unwrap();
        drop(turn);
        place.turn(later()).await.unwrap();
    }
}
