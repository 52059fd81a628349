//! One sandbox's requests and connections are bounded, also those inside one connection, and so are all sandboxes' sockets.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use http_body_util::BodyExt as _;
use sandbar_gateway::{Gateway, Outcome};
use sandbar_policy::Effect::Allow;
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use crate::{
    egress::client::{Reply, request},
    egress::server::{Server, Shown},
    egress::world::{PATIENCE, World, settings},
};

#[tokio::test]
async fn streams_of_one_connection_are_bounded_like_connections() {
    let server = Server::shows(Shown { protocols: vec!["http/1.1"], ..Shown::default() }).await;
    let port = server.port();
    let mut settings = settings();
    settings.connections = 2;
    let world = World::with(&[(Allow, &format!("a.example.test:{port} GET /**"))], settings).await;
    let sender = world.http2("a.example.test", port).await;
    let ask = |path: &str| {
        let (mut sender, url) = (sender.clone(), format!("https://a.example.test:{port}{path}"));
        async move { sender.send_request(request("GET", &url, &[], "")).await.expect("an answer") }
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut response = ask("/steps").await;
        assert_eq!(response.status(), 200);
        response.body_mut().frame().await.expect("a frame").expect("no error");
        held.push(response);
    }
    let refused = futures_util::future::join_all((0..20).map(|_| ask("/"))).await;
    for response in refused {
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["sandbar-refusal"], "busy");
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 4, "nothing more was opened");
    let busy = |outcome: &Outcome| matches!(outcome, Outcome::Failed(text) if text.contains("under way"));
    world.warden.fact("one that found no place", |fact| busy(&fact.outcome)).await;

    // who waits gets the place of the one that ends
    let began = Instant::now();
    let (reply, ()) = tokio::join!(async { Reply::read(ask("/").await).await }, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        held.pop();
    });
    // one that was held up for longer than it waits is refused, and comes again
    let reply = if began.elapsed() < Duration::from_secs(5) { reply } else { Reply::read(ask("/").await).await };
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn one_gate_leaves_sockets_to_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let target = format!("a.example.test:{}", listener.local_addr().expect("an address").port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // until its client is done
            tokio::spawn(async move { client.read(&mut [0; 1]).await });
        }
    });
    let gateway = Gateway::with_sockets(settings(), 16).expect("a gateway");
    let rules = [(Allow, target.as_str())];
    let (greedy, other) = (World::behind(&rules, gateway.clone()).await, World::behind(&rules, gateway).await);
    let mut tunnels = Vec::new();
    for _ in 0..4 {
        tunnels.push(greedy.connect(&target).await);
    }
    let fifth = greedy.connect(&target);
    let mut fifth = std::pin::pin!(fifth);
    assert!(tokio::time::timeout(Duration::from_millis(300), fifth.as_mut()).await.is_err(), "it has its half");
    for _ in 0..4 {
        tunnels.push(other.connect(&target).await);
    }
    tunnels.remove(0);
    tokio::time::timeout(PATIENCE, fifth).await.expect("a place came free");
}
