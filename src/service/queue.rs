//! A fair line of calls: bounds those that run and those that wait, and shares both between the clients of a server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Refusal;
use crate::fair::{FairShare, Share};
use config::policy::Principal;

/// Time after its last call for which a turn is reserved for a client. Later, all such clients have some together, and
/// those that are not registered are forgotten.
const RESERVED_FOR: Duration = Duration::from_secs(60);

/// Bounds the number of running and queued calls. Of one client's calls, the first that came is the first that runs;
/// between clients, the next is of the one for which the fewest run.
#[derive(Debug)]
pub(crate) struct Queue {
    /// One place for each call that runs or waits. A call without a place is refused at once.
    places: Arc<FairShare>,
    max_running: usize,
    max_waiting: usize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    running: usize,
    /// Number of the newest turn.
    last: u64,
    clients: BTreeMap<Principal, Use>,
    /// Calls that wait, in the order they came.
    waiting: VecDeque<(Principal, oneshot::Sender<RunningTurn>)>,
}

/// Use that one client makes of the queue.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Number of registrations of the client.
    registrations: usize,
    running: usize,
    /// Number of its newest turn.
    last: u64,
    /// End of its last call.
    ended: Option<Instant>,
}

/// A call's place and its turn to run; dropping them gives the turn to the next call.
#[derive(Debug)]
pub(crate) struct Turn {
    _place: Share,
    _running: RunningTurn,
}

#[derive(Debug)]
struct RunningTurn {
    queue: Arc<Queue>,
    client: Principal,
}

impl Queue {
    pub(crate) fn new(max_running: usize, max_waiting: usize) -> Arc<Self> {
        let max_running = max_running.max(1);
        let places = FairShare::new(max_running.saturating_add(max_waiting));
        Arc::new(Self { places, max_running, max_waiting, line: Mutex::default() })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Numbers are changed together, and no code panics between.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client, so that places and turns are reserved for it before its first call. Each registration is
    /// taken back by [`Queue::unregister`].
    pub(crate) fn register(&self, client: &Principal) {
        self.places.register(client);
        self.line().clients.entry(client.clone()).or_default().registrations += 1;
    }

    /// Takes back a registration. Without one, a client is forgotten some time after its last call.
    pub(crate) fn unregister(&self, client: &Principal) {
        self.places.unregister(client);
        let mut line = self.line();
        if let Some(one) = line.clients.get_mut(client) {
            one.registrations = one.registrations.saturating_sub(1);
        }
        line.forget_unused();
    }

    /// Returns the number of calls that run or wait.
    pub(crate) fn pending(&self) -> usize {
        self.places.taken()
    }

    /// Returns the number of calls that may run or wait.
    pub(crate) fn places(&self) -> usize {
        self.max_running + self.max_waiting
    }

    /// Takes a place among the running and waiting calls.
    ///
    /// # Errors
    /// The queue is full, or the client has its share of it.
    pub(crate) fn place(&self, client: &Principal) -> Result<Share, Refusal> {
        self.places.take(client, 1).ok_or_else(|| self.full())
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { running: self.max_running, waiting: self.max_waiting }
    }

    /// Waits for a client's turn to run. Returns `None` if the call is cancelled first.
    ///
    /// # Errors
    /// The queue is full, or the client has its share of it.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        client: &Principal,
        cancel: &CancellationToken,
    ) -> Result<Option<Turn>, Refusal> {
        let place = self.place(client)?;
        // Enters the line only if the call was not cancelled before.
        let turn = async {
            let (sender, turn) = oneshot::channel();
            self.line().waiting.push_back((client.clone(), sender));
            self.give();
            turn.await
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(None),
            turn = turn => match turn {
                Ok(running) => Ok(Some(Turn { _place: place, _running: running })),
                // The queue exists, so the sender does: refusing is the safe answer.
                Err(_) => Err(self.full()),
            },
        }
    }

    /// Gives free turns to waiting calls.
    fn give(self: &Arc<Self>) {
        loop {
            let mut line = self.line();
            line.waiting.retain(|(_, sender)| !sender.is_closed());
            let Some(position) = line.next(self.max_running) else { return };
            let Some((client, sender)) = line.waiting.remove(position) else { return };
            line.start(&client);
            drop(line);
            // Dropped at once if the call was cancelled meanwhile, and given to another in the next round.
            drop(sender.send(RunningTurn { queue: Arc::clone(self), client }));
        }
    }
}

impl Line {
    /// Returns the position of the call that has the next turn, if one may have it.
    fn next(&self, max_running: usize) -> Option<usize> {
        let free = max_running.saturating_sub(self.running);
        let of = |client: &Principal| self.clients.get(client).copied().unwrap_or_default();
        let reserved = self.reserved(max_running);
        let may = |client: &Principal| free > 0 && (of(client).running == 0 || free > reserved);
        let waiting = self.waiting.iter().enumerate().filter(|(_, (client, _))| may(client));
        let order = |(position, (client, _)): &(usize, &(Principal, _))| {
            let Use { running, last, .. } = of(client);
            (running, last, *position)
        };
        waiting.min_by_key(order).map(|(position, _)| position)
    }

    /// Returns the number of turns that are reserved for clients without a running call, as running calls may last: one
    /// for each client that called lately and one for all others, or one for each idle client up to a quarter of all
    /// turns if that is more; at most half of all turns.
    fn reserved(&self, max_running: usize) -> usize {
        let idle = || self.clients.values().filter(|one| one.running == 0);
        let now = Instant::now();
        let is_recent = |ended: Instant| now.duration_since(ended) < RESERVED_FOR;
        let recent = idle().filter(|one| one.ended.is_some_and(is_recent)).count();
        let newcomer = usize::from(idle().count() > recent);
        let quarter = idle().count().min(max_running / 4);
        recent.saturating_add(newcomer).max(quarter).min(max_running / 2)
    }

    /// Forgets clients without a registration for which no turn is reserved any more.
    fn forget_unused(&mut self) {
        let now = Instant::now();
        let is_recent = |ended: Instant| now.duration_since(ended) < RESERVED_FOR;
        self.clients.retain(|_, one| {
            one.registrations > 0 || one.running > 0 || one.ended.is_some_and(is_recent)
        });
    }

    fn start(&mut self, client: &Principal) {
        self.running += 1;
        self.last += 1;
        let one = self.clients.entry(client.clone()).or_default();
        *one = Use { running: one.running + 1, last: self.last, ..*one };
    }
}

impl Drop for RunningTurn {
    fn drop(&mut self) {
        let mut line = self.queue.line();
        line.running = line.running.saturating_sub(1);
        if let Some(one) = line.clients.get_mut(&self.client) {
            one.running = one.running.saturating_sub(1);
            one.ended = Some(Instant::now());
        }
        line.forget_unused();
        drop(line);
        self.queue.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(running: usize, clients: &[&str]) -> Arc<Queue> {
        let queue = Queue::new(running, 100);
        clients.iter().for_each(|name| queue.register(&Principal::named(*name)));
        queue
    }

    /// Adds a client to those that wait for a turn.
    fn wait(queue: &Arc<Queue>, name: &str) -> oneshot::Receiver<RunningTurn> {
        let (sender, turn) = oneshot::channel();
        queue.line().waiting.push_back((Principal::named(name), sender));
        queue.give();
        turn
    }

    #[test]
    fn clients_take_turns_and_the_longest_waiting_comes_first() {
        let queue = queue(1, &["a", "b"]);
        let mut first = wait(&queue, "a");
        let mut second = wait(&queue, "a");
        let mut third = wait(&queue, "a");
        let mut other = wait(&queue, "b");
        let running = first.try_recv().expect("it is free");
        assert!(second.try_recv().is_err() && other.try_recv().is_err());
        drop(running);
        let running = other.try_recv().expect("the other client's");
        assert!(second.try_recv().is_err());
        drop(running);
        let running = second.try_recv().expect("in the order they came");
        assert!(third.try_recv().is_err());
        drop(running);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn turns_are_left_for_clients_for_whom_nothing_runs() {
        let queue = queue(4, &["a", "b"]);
        let mut of_a: Vec<_> = (0..4).map(|_| wait(&queue, "a")).collect();
        let running: Vec<_> = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
        assert_eq!(running.len(), 3, "one is left");
        let own = wait(&queue, "b").try_recv().expect("for this one");
        drop(running);
        let next = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).count();
        assert_eq!(next, 1);
        drop(own);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_call_nothing_have_a_quarter_together() {
        let names: Vec<String> = (0..20).map(|number| format!("idle-{number}")).collect();
        let queue = queue(8, &["a"]);
        names.iter().for_each(|name| queue.register(&Principal::named(name.as_str())));
        let most_of_a = || {
            let mut waits: Vec<_> = (0..8).map(|_| wait(&queue, "a")).collect();
            let running: Vec<_> = waits.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
            running.len()
        };
        assert_eq!(most_of_a(), 6, "two are left for twenty");
        for name in names.iter().take(3) {
            drop(wait(&queue, name).try_recv().expect("a turn"));
        }
        assert_eq!(most_of_a(), 4, "one for each of three that called, and one for the others");
        tokio::time::advance(RESERVED_FOR).await;
        assert_eq!(most_of_a(), 6, "they call no more");
        // Two of them at the same time have a turn each, whatever the other client does.
        let mut of_a: Vec<_> = (0..8).map(|_| wait(&queue, "a")).collect();
        let held: Vec<_> = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
        let others = ["idle-7", "idle-8"].map(|name| wait(&queue, name).try_recv());
        assert!(held.len() == 6 && others.iter().all(Result::is_ok), "{others:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_client_has_no_turn_reserved_and_is_forgotten() {
        let queue = queue(4, &["a", "b", "b"]);
        let turns_of_a = || {
            let mut waits: Vec<_> = (0..4).map(|_| wait(&queue, "a")).collect();
            let running: Vec<_> = waits.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
            running.len()
        };
        assert_eq!(turns_of_a(), 3, "one is left for the other");
        queue.unregister(&Principal::named("b"));
        assert_eq!(turns_of_a(), 3, "it has another registration");
        queue.unregister(&Principal::named("b"));
        assert_eq!(turns_of_a(), 4);
        assert_eq!((queue.line().clients.len(), queue.places.taken()), (1, 0));
        // Without a registration a client is forgotten some time after its last call.
        drop(wait(&queue, "c").try_recv().expect("a turn"));
        assert_eq!(turns_of_a(), 3, "it called lately");
        tokio::time::advance(RESERVED_FOR).await;
        turns_of_a();
        assert_eq!(queue.line().clients.len(), 1);
    }

    #[test]
    fn one_client_alone_has_every_turn_and_calls_that_left_have_no_turn() {
        let queue = queue(2, &["a"]);
        let mut running = [wait(&queue, "a"), wait(&queue, "a")].map(|mut it| it.try_recv());
        assert!(running.iter().all(Result::is_ok));
        let gone = wait(&queue, "a");
        let mut stays = wait(&queue, "a");
        drop(gone);
        running[0] = Err(oneshot::error::TryRecvError::Closed);
        assert!(stays.try_recv().is_ok());
        assert_eq!(queue.line().running, 1, "that of the second call, for the third is dropped");
    }

    fn local() -> Principal {
        Principal::local()
    }

    #[tokio::test]
    async fn a_full_queue_is_refused_at_once_and_a_place_comes_free() {
        let queue = Queue::new(1, 1);
        let never = CancellationToken::new();
        let running = queue.turn(&local(), &never).await;
        assert!(matches!(running, Ok(Some(_))));
        let own = local();
        let mut waiting = Box::pin(queue.turn(&own, &never));
        assert!(glance(&mut waiting).await.is_none(), "the second call waits");
        assert_eq!(queue.pending(), 2);
        let refused = queue.turn(&local(), &never).await.map(|_| ());
        assert_eq!(refused, Err(Refusal::QueueFull { running: 1, waiting: 1 }));
        drop(running);
        assert!(matches!(waiting.await, Ok(Some(_))));
        assert_eq!(queue.pending(), 0);
    }

    #[tokio::test]
    async fn a_call_that_waits_can_be_taken_back() {
        let queue = Queue::new(1, 1);
        let cancel = CancellationToken::new();
        let running = queue.turn(&local(), &CancellationToken::new()).await;
        let own = local();
        let mut waiting = Box::pin(queue.turn(&own, &cancel));
        assert!(glance(&mut waiting).await.is_none());
        cancel.cancel();
        assert!(matches!(waiting.await, Ok(None)));
        assert_eq!(queue.pending(), 1);
        drop(running);
    }

    #[tokio::test]
    async fn a_client_that_fills_the_queue_keeps_no_other_out() {
        let queue = Queue::new(1, 100);
        let never = CancellationToken::new();
        let greedy = Principal::named("greedy");
        let modest = Principal::named("modest");
        queue.register(&greedy);
        queue.register(&modest);
        let first = queue.turn(&greedy, &never).await.expect("a turn");
        let wait = |client: &Principal| {
            let queue = Arc::clone(&queue);
            let client = client.clone();
            tokio::spawn(async move { queue.turn(&client, &CancellationToken::new()).await })
        };
        let many: Vec<_> = (0..100).map(|_| wait(&greedy)).collect();
        tokio::task::yield_now().await;
        assert!(queue.place(&greedy).is_err(), "it has its share");
        let own = wait(&modest);
        tokio::task::yield_now().await;
        assert!(!own.is_finished());
        drop(first);
        // Of a hundred that came before, not one is before it.
        let turn = own.await.expect("no panic");
        assert!(matches!(turn, Ok(Some(_))));
        many.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// Polls a future once: its value, if it is ready.
    async fn glance<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! { biased; value = future => Some(value), () = std::future::ready(()) => None }
    }

    #[test]
    fn a_full_queue_says_so() {
        assert_eq!(
            Refusal::QueueFull { running: 4, waiting: 256 }.in_full(),
            "the queue is full: 4 calls run and 256 wait\nhint: call again when one has ended"
        );
    }
}
