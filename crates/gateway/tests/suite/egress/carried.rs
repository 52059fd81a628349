//! A gate whose connections are carried to it does what one with a listener does.

use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use sandbar_gateway::{Gateway, Outcome};
use sandbar_policy::Effect::{self, Allow};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    egress::client::{ends, request},
    egress::server::Server,
    egress::world::{INSIDE, PATIENCE, World, settings},
};

const MUCH: usize = 10 << 20;
const PIECE: usize = 16 << 10;

async fn world(rules: &[(Effect, &str)]) -> World {
    World::carried(rules, Gateway::new(settings()).expect("a gateway")).await
}

/// A server that is given its connections by hand, and a gate that lets through to it.
async fn tunnels() -> (World, TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let target = format!("a.example.test:{}", listener.local_addr().expect("an address").port());
    (world(&[(Allow, &target)]).await, listener, target)
}

async fn pair(world: &World, listener: &TcpListener, target: &str) -> (TcpStream, TcpStream) {
    let client = world.connect(target).await;
    let (server, _) = listener.accept().await.expect("a connection");
    (client, server)
}

#[tokio::test]
async fn halves_close_by_themselves() {
    let (world, listener, target) = tunnels().await;
    let (mut client, mut server) = pair(&world, &listener, &target).await;
    let mut buffer = [0; 64];
    server.write_all(b"SSH-2.0-server\r\n").await.expect("written");
    assert_eq!(client.read(&mut buffer).await.expect("read"), 16);
    client.write_all(b"SSH-2.0-client\r\n").await.expect("written");
    assert_eq!(server.read(&mut buffer).await.expect("read"), 16);
    client.shutdown().await.expect("half closed");
    assert_eq!(server.read(&mut buffer).await.expect("read"), 0);
    server.write_all(b"still heard").await.expect("written");
    assert_eq!(client.read(&mut buffer).await.expect("read"), 11);
    drop(server);
    assert!(ends(&mut client).await);
    let fact = world.warden.fact("its end", |fact| fact.outcome == Outcome::Done { status: None }).await;
    assert_eq!((fact.sent, fact.received), (16, 27));
}

#[tokio::test]
async fn much_passes_both_ways_at_once() {
    let (world, listener, target) = tunnels().await;
    let (client, server) = pair(&world, &listener, &target).await;
    // piece by piece: others look at the memory of this process
    let exchange = |stream: TcpStream, says: u8, hears: u8| async move {
        let (mut reader, mut writer) = stream.into_split();
        let write = async {
            for _ in 0..MUCH / PIECE {
                writer.write_all(&[says; PIECE]).await.expect("written");
            }
            writer.shutdown().await.expect("half closed");
        };
        let read = async {
            let (mut buffer, mut got) = (vec![0; PIECE], 0);
            loop {
                match reader.read(&mut buffer).await.expect("read") {
                    0 => return got,
                    count => {
                        assert!(buffer[..count].iter().all(|byte| *byte == hears), "another byte after {got}");
                        got += count;
                    }
                }
            }
        };
        tokio::join!(write, read).1
    };
    let got = tokio::join!(exchange(client, b'\x01', b'\x02'), exchange(server, b'\x02', b'\x01'));
    assert_eq!(got, (MUCH, MUCH));
}

#[tokio::test]
async fn who_does_not_read_holds_up_nobody() {
    let (world, listener, target) = tunnels().await;
    let (_idle, mut server) = pair(&world, &listener, &target).await;
    let chunk = vec![1; 1 << 20];
    let stalls = async { while server.write_all(&chunk).await.is_ok() {} };
    assert!(tokio::time::timeout(Duration::from_secs(2), stalls).await.is_err(), "what is not read is not taken");
    let (mut client, mut server) = pair(&world, &listener, &target).await;
    let passes = async {
        server.write_all(b"\x01\x02").await.expect("written");
        client.read_exact(&mut [0; 2]).await.expect("read");
    };
    tokio::time::timeout(PATIENCE, passes).await.expect("another passes");
}

#[tokio::test]
async fn requests_are_answered_in_plain_and_terminated() {
    let (plain, tls) = (Server::plain().await, Server::tls().await);
    let rules = [format!("a.example.test:{} GET /**", plain.port()), format!("b.example.test:{} GET /**", tls.port())];
    let world = world(&rules.each_ref().map(|rule| (Allow, rule.as_str()))).await;
    let reply = world.plain(&format!("http://a.example.test:{}/x", plain.port()), &[]).await;
    assert_eq!((reply.status, &reply.headers["x-server"]), (200, &"here".parse().expect("a value")));
    let reply = world.get("b.example.test", tls.port(), "/y", &[]).await;
    assert!(reply.status == 200 && tls.last().target.ends_with("/y"), "{:?}", tls.last());
    assert_eq!(world.plain(&format!("http://c.example.test:{}/", plain.port()), &[]).await.status, 403);
}

#[tokio::test]
async fn websockets_pass() {
    let server = Server::plain().await;
    let host = format!("a.example.test:{}", server.port());
    let world = world(&[(Allow, &format!("{host} GET /**"))]).await;
    let mut sender = world.plain_sender().await;
    let headers = [("host", host.as_str()), ("connection", "upgrade"), ("upgrade", "websocket")];
    let asked = request("GET", &format!("http://{host}/ws"), &headers, "");
    let mut response = sender.send_request(asked).await.expect("an answer");
    assert_eq!(response.status(), 101);
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"));
    io.write_all(b"frame").await.expect("written");
    let mut buffer = [0; 5];
    io.read_exact(&mut buffer).await.expect("read");
    assert_eq!(&buffer, b"frame");
}

#[tokio::test]
async fn the_gate_itself_is_where_its_clients_find_it() {
    let world = world(&[]).await;
    for own in ["127.0.0.1", "localhost"] {
        let reply = world.plain(&format!("http://{own}:{INSIDE}/"), &[]).await;
        assert!(reply.status == 200 && reply.text().contains("way out"), "{own}: {reply:?}");
    }
    let elsewhere = world.plain(&format!("http://127.0.0.1:{}/", world.proxy.port()), &[]).await;
    assert_eq!(elsewhere.status, 403, "the server's own loopback is another");
}

#[tokio::test]
async fn silence_ends_them_and_more_than_allowed_wait() {
    const IDLE: Duration = Duration::from_secs(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let target = format!("a.example.test:{}", listener.local_addr().expect("an address").port());
    let mut settings = settings();
    (settings.connections, settings.idle_timeout) = (1, IDLE);
    let world = World::carried(&[(Allow, &target)], Gateway::new(settings).expect("a gateway")).await;
    let began = Instant::now();
    let (mut first, _server) = pair(&world, &listener, &target).await;
    let second = world.connect(&target);
    let mut second = std::pin::pin!(second);
    let waits = tokio::time::timeout(Duration::from_millis(300), second.as_mut()).await.is_err();
    // on a busy machine the first may be silent for long enough by now
    assert!(waits || began.elapsed() >= IDLE, "there is no room");
    assert!(ends(&mut first).await);
    if waits {
        tokio::time::timeout(PATIENCE, second).await.expect("there is room again");
    }
}

#[tokio::test]
async fn stopping_lets_go_of_all() {
    let (world, listener, target) = tunnels().await;
    let (mut client, _server) = pair(&world, &listener, &target).await;
    world.stop.cancel();
    assert!(ends(&mut client).await);
    let refused = async { while TcpStream::connect(world.proxy).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, refused).await.expect("nothing more is taken");
}
