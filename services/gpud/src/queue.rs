//! One request at a time, first come, first served: cores and GPU are the same for all models.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use api::{ErrorCode, Failure, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::unconstrained;

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
pub(crate) struct Place {
    queue: Queue,
    /// Requests before this one, with the one that works.
    pub(crate) before: usize,
    permit: Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>,
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

    /// Takes a place, behind those that were taken before.
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
        Ok(Place { queue: self.clone(), before: waiting + works, permit: self.line_up() })
    }

    fn line_up(&self) -> Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>> {
        let turn = Arc::clone(&self.turn);
        // PANIC: nobody closes the semaphore.
        let permit = async move { turn.acquire_owned().await.expect("the semaphore is open") };
        // The semaphore gives a place when it is first polled, where the task's budget does not keep it from that.
        let mut permit = Box::pin(unconstrained(permit));
        match permit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Box::pin(std::future::ready(permit)),
            Poll::Pending => permit,
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("queue", &self.queue).field("before", &self.before).finish_non_exhaustive()
    }
}

impl Place {
    /// Waits for the turn.
    ///
    /// # Errors
    /// `DeadlineExceeded`.
    pub(crate) async fn turn(mut self, deadline: Instant) -> Result<Turn> {
        let permit = tokio::time::timeout_at(deadline.into(), &mut self.permit).await;
        let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed in the queue");
        Ok(Turn { _permit: permit.map_err(|_| late())? })
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
        let places: Vec<_> = (0..3).map(|_| queue.enter().unwrap()).collect();
        // Whoever came first is first, also where it looks at its turn last.
        for (number, place) in places.into_iter().enumerate().rev() {
            assert_eq!(place.before, number + 1);
            let order = order.clone();
            let mut turn = Box::pin(async move {
                let _turn = place.turn(later()).await.unwrap();
                order.send(number).unwrap();
            });
            assert!(waits(turn.as_mut()).await);
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
    async fn waits(mut future: Pin<&mut impl Future>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
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
