//! Bodies pass as they come: nothing is gathered, nothing waits for its end.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{Request, body::Frame};
use sandbar_gateway::Outcome;
use sandbar_policy::Effect::Allow;

use crate::{
    egress::client::{Reply, request},
    egress::server::{Server, Shown},
    egress::world::{PATIENCE, World},
};

const MANY: usize = 100 * 1024 * 1024;

/// Resident memory of this process, which holds client, gateway and server.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let server = Server::shows(Shown { protocols, ..Shown::default() }).await;
        let port = server.port();
        let world = World::new(&[(Allow, &format!("a.example.test:{port} GET /**"))]).await;
        let mut sender = world.http1("a.example.test", port).await;
        let asked = request("GET", "/steps", &[("host", &format!("a.example.test:{port}"))], "");
        let mut body = sender.send_request(asked).await.expect("an answer").into_body();
        for number in 0..3 {
            let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("in time");
            let data = frame.expect("a frame").expect("no error").into_data().expect("data");
            assert_eq!(data, format!("data: {number}\n\n"), "before the server goes on");
            server.step.notify_one();
        }
        world.warden.fact("its end", |fact| fact.received == 27).await;
    }
}

#[tokio::test]
async fn much_passes_both_ways_without_being_kept() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let server = Server::shows(Shown { protocols: protocols.clone(), ..Shown::default() }).await;
        let port = server.port();
        let world = World::new(&[(Allow, &format!("a.example.test:{port} GET,POST /**"))]).await;
        let before = resident();
        let mut most = 0;
        let host = format!("a.example.test:{port}");

        let chunk = Bytes::from(vec![b'y'; 65_536]);
        let chunks = stream::iter(0..MANY / 65_536).map(move |_| Ok::<_, std::io::Error>(Frame::data(chunk.clone())));
        let mut sender = world.http1("a.example.test", port).await;
        let asked = Request::post("/sink").header("host", &host).body(StreamBody::new(chunks)).expect("a request");
        let reply = Reply::read(sender.send_request(asked).await.expect("an answer")).await;
        assert_eq!(reply.text(), MANY.to_string());
        most = resident().max(most);

        let mut sender = world.http1("a.example.test", port).await;
        let asked = request("GET", &format!("/source/{MANY}"), &[("host", &host)], "");
        let mut body = sender.send_request(asked).await.expect("an answer").into_body();
        let mut count = 0;
        while let Some(frame) = body.frame().await {
            count += frame.expect("no error").data_ref().map_or(0, Bytes::len);
            if count % (8 << 20) < 65_536 {
                most = resident().max(most);
            }
        }
        assert_eq!(count, MANY);
        // other tests of this process allocate too
        assert!(most < before + MANY / 2, "{protocols:?}: {before} became {most}");
        let fact = world.warden.fact("all of it", |fact| fact.received == MANY as u64).await;
        assert_eq!(fact.outcome, Outcome::Done { status: Some(200) });
        world.warden.fact("all of it", |fact| fact.sent == MANY as u64).await;
    }
}

#[tokio::test]
async fn a_slow_reader_slows_the_server() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port} GET /**"))]).await;
    let mut sender = world.http1("a.example.test", port).await;
    let asked = request("GET", &format!("/source/{MANY}"), &[("host", &format!("a.example.test:{port}"))], "");
    let body = sender.send_request(asked).await.expect("an answer").into_body();
    let before = resident();
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert!(resident() < before + MANY / 2, "what is not read is not fetched");
    drop(body);
    drop(sender);
    let fact = world.warden.fact("its end", |fact| fact.path.is_some()).await;
    assert!(matches!(fact.outcome, Outcome::Failed(_)) && fact.received < MANY as u64 / 2, "{fact:?}");
}
