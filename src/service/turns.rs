//! Turns to run, which clients wait for: the next is of the client for which the fewest run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use config::policy::Principal;

/// Time after its last call for which a turn is left for a client. Beyond, all such clients have some together.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// Turns of a queue.
#[derive(Debug)]
pub(crate) struct Turns {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Number of the newest turn.
    last: u64,
    clients: BTreeMap<Principal, Use>,
    /// Calls that wait, in the order they came.
    waiting: VecDeque<(Principal, oneshot::Sender<RunningTurn>)>,
}

/// Use that one client makes of the turns.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    running: usize,
    /// Number of its newest turn.
    last: u64,
    /// End of its last call.
    ended: Option<Instant>,
}

/// A turn, until this is dropped.
#[derive(Debug)]
pub(crate) struct RunningTurn {
    of: Arc<Turns>,
    client: Principal,
}

impl Turns {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Numbers are changed together, and nothing panics between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client, though it has called nothing yet.
    pub(crate) fn know(&self, client: &Principal) {
        self.state().clients.entry(client.clone()).or_default();
    }

    /// Waits for a turn of a client. `None` is never returned while there are turns.
    pub(crate) async fn turn(self: &Arc<Self>, client: &Principal) -> Option<RunningTurn> {
        let (sender, turn) = oneshot::channel();
        self.state().waiting.push_back((client.clone(), sender));
        self.give();
        turn.await.ok()
    }

    /// Gives free turns to waiting clients.
    fn give(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            state.waiting.retain(|(_, sender)| !sender.is_closed());
            let Some(place) = state.next(self.most) else { return };
            let Some((client, sender)) = state.waiting.remove(place) else { return };
            state.began(&client);
            drop(state);
            // Dropped at once where the call was taken back meanwhile, and given to another in the next round.
            drop(sender.send(RunningTurn { of: Arc::clone(self), client }));
        }
    }
}

impl State {
    /// Returns the place of the call that has the next turn, if it may have one.
    fn next(&self, most: usize) -> Option<usize> {
        let free = most.saturating_sub(self.running);
        let of = |client: &Principal| self.clients.get(client).copied().unwrap_or_default();
        let left = self.left_for_others(most);
        let may = |client: &Principal| free > 0 && (of(client).running == 0 || free > left);
        let waiting = self.waiting.iter().enumerate().filter(|(_, (client, _))| may(client));
        let order = |(place, (client, _)): &(usize, &(Principal, _))| {
            let Use { running, last, .. } = of(client);
            (running, last, *place)
        };
        waiting.min_by_key(order).map(|(place, _)| place)
    }

    /// Returns the number of turns that are reserved for clients without a running call, as running calls may last: one
    /// for each client that called lately, and one for all others; at most a quarter of all turns.
    fn left_for_others(&self, most: usize) -> usize {
        let idle = || self.clients.values().filter(|one| one.running == 0);
        let now = Instant::now();
        let is_recent = |ended: Instant| now.duration_since(ended) < LEFT_FOR;
        let recent = idle().filter(|one| one.ended.is_some_and(is_recent)).count();
        let newcomer = usize::from(idle().count() > recent);
        recent.saturating_add(newcomer).max(idle().count().min(most / 4)).min(most / 2)
    }

    fn began(&mut self, client: &Principal) {
        self.running += 1;
        self.last += 1;
        let one = self.clients.entry(client.clone()).or_default();
        *one = Use { running: one.running + 1, last: self.last, ..*one };
    }
}

impl Drop for RunningTurn {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.running = state.running.saturating_sub(1);
        if let Some(one) = state.clients.get_mut(&self.client) {
            one.running = one.running.saturating_sub(1);
            one.ended = Some(Instant::now());
        }
        drop(state);
        self.of.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(most: usize, clients: &[&str]) -> Arc<Turns> {
        let turns = Turns::new(most);
        clients.iter().for_each(|name| turns.know(&Principal::named(*name)));
        turns
    }

    /// Adds a client to those that wait for a turn.
    fn wait(turns: &Arc<Turns>, name: &str) -> oneshot::Receiver<RunningTurn> {
        let (sender, turn) = oneshot::channel();
        turns.state().waiting.push_back((Principal::named(name), sender));
        turns.give();
        turn
    }

    #[test]
    fn clients_take_turns_and_the_longest_waiting_comes_first() {
        let turns = turns(1, &["a", "b"]);
        let mut first = wait(&turns, "a");
        let (mut second, mut third, mut other) =
            (wait(&turns, "a"), wait(&turns, "a"), wait(&turns, "b"));
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
        let turns = turns(4, &["a", "b"]);
        let mut of_a: Vec<_> = (0..4).map(|_| wait(&turns, "a")).collect();
        let running: Vec<_> = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
        assert_eq!(running.len(), 3, "one is left");
        let own = wait(&turns, "b").try_recv().expect("for this one");
        drop(running);
        let next = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).count();
        assert_eq!(next, 1);
        drop(own);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_call_nothing_have_a_quarter_together() {
        let names: Vec<String> = (0..20).map(|number| format!("idle-{number}")).collect();
        let turns = turns(8, &["a"]);
        names.iter().for_each(|name| turns.know(&Principal::named(name.as_str())));
        let most_of_a = || {
            let mut waits: Vec<_> = (0..8).map(|_| wait(&turns, "a")).collect();
            let running: Vec<_> = waits.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
            running.len()
        };
        assert_eq!(most_of_a(), 6, "two are left for twenty");
        for name in names.iter().take(3) {
            drop(wait(&turns, name).try_recv().expect("a turn"));
        }
        assert_eq!(most_of_a(), 4, "one for each of three that called, and one for the others");
        tokio::time::advance(LEFT_FOR).await;
        assert_eq!(most_of_a(), 6, "they call no more");
        // Two of them at the same time have a turn each, whatever the other client does.
        let mut of_a: Vec<_> = (0..8).map(|_| wait(&turns, "a")).collect();
        let held: Vec<_> = of_a.iter_mut().filter_map(|it| it.try_recv().ok()).collect();
        let others = ["idle-7", "idle-8"].map(|name| wait(&turns, name).try_recv());
        assert!(held.len() == 6 && others.iter().all(Result::is_ok), "{others:?}");
    }

    #[test]
    fn one_client_alone_has_every_turn_and_calls_that_left_have_no_turn() {
        let turns = turns(2, &["a"]);
        let mut running = [wait(&turns, "a"), wait(&turns, "a")].map(|mut it| it.try_recv());
        assert!(running.iter().all(Result::is_ok));
        let gone = wait(&turns, "a");
        let mut stays = wait(&turns, "a");
        drop(gone);
        running[0] = Err(oneshot::error::TryRecvError::Closed);
        assert!(stays.try_recv().is_ok());
        assert_eq!(turns.state().running, 1, "that of the second call, for the third is dropped");
    }
}
