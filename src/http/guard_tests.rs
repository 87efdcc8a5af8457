//! Tests of [`super`]: what a request holds, and which client has a place.

use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use super::*;
use crate::access::browser::{ListenerReach, ServedNames};
use crate::access::tokens::Token;
use crate::access::{CredentialStore, Standing, WithoutToken};
use mcp::server::Continuity;

fn agent() -> Client {
    let principal = Principal::named("a");
    let rights = ClientRights::Agent;
    Client { principal, standing: Standing::Known, rights, until: None }
}

/// Reads a small request of a client that has memory for `room` KiB.
async fn held(room: usize) -> (BodyMemory, HeldBody) {
    let bodies = BodyMemory::new(1 << 20, room << 10, Duration::from_secs(60));
    let headers = HeaderMap::new();
    let read = bodies.read(&agent(), &headers, BodyForm::Json, Body::from("{}")).await;
    (bodies, read.expect("it is small"))
}

#[tokio::test]
async fn a_requests_resources_are_kept_until_its_answer_is_sent() {
    let (_bodies, held) = held(8).await;
    let places = Arc::new(Semaphore::new(1));
    let place = Arc::clone(&places).try_acquire_owned().expect("it is free");
    let serving = FairShare::new(1).take(&agent().principal, 1).expect("it is free");
    let permit = RequestPermit {
        _place: place,
        held,
        _serving: (serving, None),
        _busy: None,
        _door: Arc::new(()),
    };
    let mut body = AnswerBody::new(Body::from(vec![b'x'; 4096]), permit, None);
    let first = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(first.into_data().map(|data| data.len()).ok(), Some(4096));
    // hyper asks this with the bytes still in its buffer, and drops a body that answers yes.
    assert!(!body.is_end_stream(), "its bytes are not sent yet");
    assert_eq!(places.available_permits(), 0);
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(places.available_permits(), 1);
}

#[tokio::test]
async fn an_answer_has_its_part_of_the_memory_and_one_beyond_it_is_refused() {
    let (bodies, held) = held(300).await;
    let answer = || Response::new(Body::from(vec![b'x'; 200 << 10]));
    assert_eq!(charged(answer(), &held).status(), StatusCode::OK);
    assert_eq!(charged(answer(), &held).status(), StatusCode::SERVICE_UNAVAILABLE);
    let mut own = answer();
    own.extensions_mut().insert(Charged);
    assert_eq!(charged(own, &held).status(), StatusCode::OK, "it is charged already");
    let small = Response::new(Body::from("served"));
    assert_eq!(charged(small, &held).status(), StatusCode::OK);
    drop((bodies, held));
}

#[tokio::test]
async fn a_stream_has_its_share_of_the_memory_and_ends_without_one() {
    let (bodies, held) = held(300).await;
    let stream = async |bytes: usize| {
        let (mut sender, body) = http_body_util::channel::Channel::<Bytes>::new(1);
        sender.send_data(vec![b'x'; bytes].into()).await.expect("it is read");
        let client = agent();
        let headers = HeaderMap::new();
        let read = bodies.read(&client, &headers, BodyForm::Json, Body::from("{}")).await;
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is free");
        let serving = FairShare::new(1).take(&agent().principal, 1).expect("it is free");
        let permit = RequestPermit {
            _place: place,
            held: read.expect("it is small"),
            _serving: (serving, None),
            _busy: None,
            _door: Arc::new(()),
        };
        AnswerBody::new(Body::new(body), permit, None)
    };
    let mut first = stream(200 << 10).await;
    let mut second = stream(200 << 10).await;
    assert!(first.frame().await.is_some_and(|frame| frame.is_ok()));
    assert!(second.frame().await.is_some_and(|frame| frame.is_err()), "the first is not sent");
    assert!(second.frame().await.is_none());
    assert!(stream(60 << 10).await.frame().await.is_some_and(|frame| frame.is_ok()), "small");
    assert!(first.frame().await.is_none());
    assert!(stream(200 << 10).await.frame().await.is_some_and(|frame| frame.is_ok()));
    drop(held);
}

/// Makes handlers that serve nothing, and records for which client.
#[derive(Default)]
struct Seen(Mutex<Vec<(&'static str, String)>>);

#[derive(Clone)]
struct Nothing;

impl ServerHandler for Nothing {}

impl Seen {
    fn note(&self, what: &'static str, client: &Principal) -> Nothing {
        let mut seen = self.0.lock().expect("no panic");
        seen.push((what, client.name().to_owned()));
        Nothing
    }
}

impl MakeHandler for Seen {
    type Handler = Nothing;

    fn handler(&self, client: &Principal, _: Continuity) -> Nothing {
        self.note("runs", client)
    }

    fn watcher(&self, client: &Principal) -> Nothing {
        self.note("watches", client)
    }

    fn forget(&self, client: &Principal) {
        self.note("forgets", client);
    }
}

/// Makes a guard of these tokens.
fn guarded(
    tokens: Vec<Token>,
    limits: &ListenerLimits,
) -> (Guard<Nothing>, Arc<Seen>, CredentialStore) {
    let names =
        ServedNames { reach: ListenerReach::Socket, hosts: Vec::new(), origins: Vec::new() };
    let store = CredentialStore::new(Credentials::new(tokens, None, None, None));
    let access = AccessRules::new(names, &store, WithoutToken::Refused);
    let handlers = Arc::new(Seen::default());
    let leaving = CancellationToken::new();
    let end = CancellationToken::new();
    let guard = Guard::new(&handlers, access, limits, Ends::default(), leaving, &end);
    (guard, handlers, store)
}

#[tokio::test]
async fn no_connection_is_kept_free_for_a_removed_client() {
    let token = |name: &str, rights| {
        let made = Token::new(&name.repeat(32), Principal::named(name));
        made.expect("it is long enough").with_rights(rights)
    };
    let agent_of = |name| token(name, ClientRights::Agent);
    let limits = ListenerLimits::default();
    let all = limits.connections - OPERATOR_CONNECTIONS;
    let operator = token("o", ClientRights::Operator);
    let (guard, _, store) = guarded(vec![agent_of("a"), agent_of("b"), operator], &limits);
    let taken = || {
        let held: Vec<_> = (0..600).map_while(|_| guard.serving(&agent()).ok()).collect();
        held.len()
    };
    assert_eq!(taken(), all / 2, "as many are left for the other");
    let replace = |tokens| {
        store.replace(Credentials::new(tokens, None, None, None));
        guard.follow();
        taken()
    };
    // The same client as an operator takes no connection of agents.
    assert_eq!(replace(vec![agent_of("a"), token("b", ClientRights::Operator)]), all);
    assert_eq!(replace(vec![agent_of("a"), agent_of("b")]), all / 2, "it has one again");
    assert_eq!(replace(vec![agent_of("a"), agent_of("b")]), all / 2);
    assert_eq!(replace(vec![agent_of("a")]), all);
}

#[tokio::test(start_paused = true)]
async fn a_removed_client_is_forgotten_once_its_requests_have_been_answered() {
    let token = |name: &str, rights| {
        let made = Token::new(&name.repeat(32), Principal::named(name));
        made.expect("it is long enough").with_rights(rights)
    };
    let agents =
        |names: &[&str]| names.iter().map(|name| token(name, ClientRights::Agent)).collect();
    let (guard, handlers, store) = guarded(agents(&["a", "b", "c"]), &ListenerLimits::default());
    let forgotten = async || {
        // The tasks that close doors run in it.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seen = handlers.0.lock().expect("no panic");
        let names =
            seen.iter().filter(|(what, _)| *what == "forgets").map(|(_, name)| name.clone());
        names.collect::<Vec<_>>()
    };
    let replace = |tokens: Vec<Token>| {
        store.replace(Credentials::new(tokens, None, None, None));
        guard.follow();
    };
    let served =
        guard.door(&Client { principal: Principal::named("b"), ..agent() }).expect("a door");
    // One is removed while it is served, and one has other rights.
    replace(vec![token("a", ClientRights::Agent), token("c", ClientRights::Operator)]);
    assert_eq!(forgotten().await, Vec::<String>::new());
    drop(served);
    assert_eq!(forgotten().await, ["b"]);
    // One that comes back while it is closed is not forgotten.
    let served = guard.door(&agent()).expect("a door");
    replace(agents(&["c"]));
    replace(agents(&["a", "c"]));
    drop(served);
    assert_eq!(forgotten().await, ["b"]);
    replace(Vec::new());
    let mut all = forgotten().await;
    all.sort();
    assert_eq!(all, ["a", "b", "c"]);
}

fn subject(name: &str, until: SystemTime) -> Client {
    Client { principal: Principal::subject("s", name), until: Some(until), ..agent() }
}

#[tokio::test]
async fn the_door_of_a_subject_is_closed_with_the_last_of_its_tokens() {
    let (guard, _, store) = guarded(Vec::new(), &ListenerLimits::default());
    let now = SystemTime::now();
    let hour = now + Duration::from_secs(3600);
    // A second token, with an earlier end, takes nothing from the first.
    for client in [subject("stays", hour), subject("stays", now), subject("ends", now)] {
        guard.door(&client).expect("a door");
    }
    assert_eq!(guard.doors.take_expired(SystemTime::now()).len(), 1);
    // Without a request after the credentials were replaced, its key may be gone.
    store.replace(Credentials::default());
    guard.follow();
    guard.door(&subject("shows", hour)).expect("a door");
    let later = SystemTime::now() + Duration::from_secs(61);
    assert_eq!(guard.doors.take_expired(later).len(), 1);
    assert_eq!(guard.doors.take_expired(hour).len(), 1);
}

#[tokio::test]
async fn clients_of_the_configuration_take_no_door_from_subjects() {
    let token = |number: usize| {
        let made = Token::new(&format!("{number:032}"), Principal::named(format!("c{number}")));
        made.expect("it is long enough")
    };
    let (guard, ..) = guarded((0..1100).map(token).collect(), &ListenerLimits::default());
    let until = SystemTime::now() + Duration::from_secs(60);
    for number in 0..1024 {
        assert!(guard.door(&subject(&number.to_string(), until)).is_ok(), "{number}");
    }
    assert!(guard.door(&subject("more", until)).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_door_makes_room_for_another_is_forgotten() {
    let (guard, handlers, _) = guarded(Vec::new(), &ListenerLimits::default());
    let until = SystemTime::now() + Duration::from_secs(3600);
    let open = |name: &str| guard.door(&subject(name, until)).map(drop).map_err(|_| "no door");
    for number in 0..1024 {
        open(&number.to_string()).expect("there is room");
    }
    // The control: each door was used lately.
    assert!(open("early").is_err());
    tokio::time::sleep(Duration::from_secs(301)).await;
    open("0").expect("it has one");
    let forgotten = || -> Vec<String> {
        let seen = handlers.0.lock().expect("no panic");
        seen.iter().filter(|(what, _)| *what == "forgets").map(|(_, name)| name.clone()).collect()
    };
    assert_eq!(forgotten(), Vec::<String>::new());
    open("late").expect("one made room");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(forgotten(), [subject("1", until).principal.name()]);
}

#[tokio::test]
async fn a_client_is_forgotten_while_no_door_can_be_made() {
    let (guard, ..) = guarded(Vec::new(), &ListenerLimits::default());
    let client = subject("s", SystemTime::now() + Duration::from_secs(60));
    let mut was_locked = false;
    guard.doors.unless_open(&client.principal, |_| was_locked = guard.doors.is_locked());
    assert!(was_locked && !guard.doors.is_locked());
    guard.door(&client).expect("a door");
    guard.doors.unless_open(&client.principal, |_| panic!("it has a door"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_access_token() {
    let end = |until| stream_end(CancellationToken::new(), Arc::default(), until, None);
    let wait = Duration::from_secs(120);
    let soon = SystemTime::now() + Duration::from_secs(60);
    assert!(tokio::time::timeout(wait, end(Some(soon))).await.is_ok());
    // The control: one without an end.
    assert!(tokio::time::timeout(wait, end(None)).await.is_err());
}

#[tokio::test]
async fn an_operator_takes_no_connection_of_agents_and_no_client_reserves_for_it() {
    let token = |name: &str, rights| {
        let made = Token::new(&name.repeat(32), Principal::named(name));
        let mut token = made.expect("it is long enough");
        token.rights = rights;
        token
    };
    let tokens = vec![token("a", ClientRights::Agent), token("ops", ClientRights::Operator)];
    let limits = ListenerLimits::default();
    let (guard, handlers, _store) = guarded(tokens, &limits);
    let seen = handlers.0.lock().expect("no panic").clone();
    assert_eq!(seen, [("runs", "a".to_owned()), ("watches", "ops".to_owned())]);
    let operator =
        Client { principal: Principal::named("ops"), rights: ClientRights::Operator, ..agent() };
    let own = guard.serving(&operator).expect("one is free");
    let all: Vec<_> = (0..600).map_while(|_| guard.serving(&agent()).ok()).collect();
    assert_eq!(all.len(), limits.connections - OPERATOR_CONNECTIONS, "the only agent has all");
    assert!(guard.serving(&operator).is_ok());
    drop(own);
}
