//! Requests that were seen lately.
//!
//! A broker sends a request again when it did not see our acknowledgement, and a client when it did not see our reply.
//! Neither costs a second inference: what runs is answered once, and what was answered is answered the same again.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use kit::mqtt::{Delivery, Publication};

/// Answers that are kept.
const ANSWERS: usize = 256;
/// The largest reply that is kept; a larger one is computed again.
const REPLY_BYTES: usize = 64 * 1024;

/// What makes two requests the same: where the reply goes, what the client calls it, and what it asks. A client that
/// counts from 0 again after a restart asks something else by an old name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    reply_topic: String,
    name: Vec<u8>,
    /// Hash of topic, content type, properties and payload.
    asked: u64,
}

/// What is known of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Seen {
    /// Nothing: it is to be run.
    Never,
    /// It runs. The delivery, where the broker waits for that, is acknowledged together with the first one.
    Running,
    /// It was answered like this.
    Answered(Publication),
}

/// Requests that were seen lately.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Running requests, with deliveries of the same.
    running: HashMap<Key, Vec<Delivery>>,
    answers: HashMap<Key, Publication>,
    /// Keys of `answers`, oldest first.
    order: VecDeque<Key>,
    hasher: RandomState,
}

impl Window {
    /// The key of a request that has Correlation Data or an `id`.
    pub(super) fn key(&self, delivery: &Delivery, reply_topic: &str, id: Option<&str>) -> Option<Key> {
        let name = delivery.correlation.as_deref().or(id.map(str::as_bytes))?.to_vec();
        let Delivery { topic, content_type, properties, payload, .. } = delivery;
        let asked = self.hasher.hash_one((topic, content_type, properties, payload));
        Some(Key { reply_topic: reply_topic.to_owned(), name, asked })
    }

    /// Looks a request up. One that was never seen counts as running from now on.
    pub(super) fn look(&mut self, key: &Key, delivery: &Delivery) -> Seen {
        if let Some(answer) = self.answers.get(key) {
            return Seen::Answered(answer.clone());
        }
        if let Some(deliveries) = self.running.get_mut(key) {
            if delivery.wants_acknowledgement() {
                deliveries.push(delivery.clone());
            }
            return Seen::Running;
        }
        self.running.insert(key.clone(), Vec::new());
        Seen::Never
    }

    /// A request has ended; `reply` is kept. Returns the other deliveries of it.
    pub(super) fn answer(&mut self, key: Key, reply: Option<&Publication>) -> Vec<Delivery> {
        let deliveries = self.running.remove(&key).unwrap_or_default();
        if let Some(reply) = reply.filter(|reply| reply.payload.len() <= REPLY_BYTES) {
            if self.order.len() == ANSWERS
                && let Some(oldest) = self.order.pop_front()
            {
                self.answers.remove(&oldest);
            }
            self.answers.insert(key.clone(), reply.clone());
            self.order.push_back(key);
        }
        deliveries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: usize) -> Key {
        Key { reply_topic: "r".into(), name: name.to_le_bytes().into(), asked: 0 }
    }

    fn reply(bytes: usize) -> Publication {
        Publication { payload: vec![0; bytes].into(), ..Publication::default() }
    }

    #[test]
    fn a_request_without_a_name_has_no_key() {
        let (window, delivery) = (Window::default(), Delivery::default());
        assert_eq!(window.key(&delivery, "r", None), None);
        assert_ne!(window.key(&delivery, "r", Some("a")), window.key(&delivery, "s", Some("a")));
    }

    #[test]
    fn requests_of_one_name_that_ask_something_else_differ() {
        let window = Window::default();
        let mut delivery = Delivery::default();
        let key = |delivery: &Delivery| window.key(delivery, "r", Some("a"));
        let first = key(&delivery);
        assert_eq!(first, key(&delivery));
        delivery.topic = "another model".into();
        let second = key(&delivery);
        delivery.payload = "another picture".into();
        assert!(first != second && second != key(&delivery));
    }

    #[test]
    fn a_running_request_is_run_once_and_what_nobody_acknowledges_is_not_kept() {
        let mut window = Window::default();
        let delivery = Delivery::default();
        assert_eq!(window.look(&key(1), &delivery), Seen::Never);
        assert_eq!(window.look(&key(1), &delivery), Seen::Running);
        assert_eq!(window.look(&key(2), &delivery), Seen::Never);
        assert!(window.answer(key(1), Some(&reply(3))).is_empty());
        assert_eq!(window.look(&key(1), &delivery), Seen::Answered(reply(3)));
    }

    #[test]
    fn a_refused_request_and_a_large_reply_are_run_again() {
        let mut window = Window::default();
        for kept in [None, Some(&reply(REPLY_BYTES + 1))] {
            assert_eq!(window.look(&key(1), &Delivery::default()), Seen::Never);
            window.answer(key(1), kept);
        }
    }

    #[test]
    fn the_oldest_answers_are_forgotten() {
        let mut window = Window::default();
        for name in 0..=ANSWERS {
            assert_eq!(window.look(&key(name), &Delivery::default()), Seen::Never);
            window.answer(key(name), Some(&reply(1)));
        }
        assert_eq!(window.look(&key(0), &Delivery::default()), Seen::Never);
        assert_eq!(window.look(&key(1), &Delivery::default()), Seen::Answered(reply(1)));
        assert_eq!((window.answers.len(), window.order.len()), (ANSWERS, ANSWERS));
    }
}
