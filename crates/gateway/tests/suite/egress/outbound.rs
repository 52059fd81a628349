//! The server's own POST: where it goes, where it never goes, and how long a target can hold it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::Ordering,
    time::Duration,
};

use bytes::Bytes;
use sandbar_gateway::{Answered, Gateway, NotPosted, Settings, Target};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::Instant,
};

use crate::{
    egress::names::Dns,
    egress::server::{Server, Shown, issuer},
    egress::world::settings,
};

fn gateway(settings: Settings) -> Gateway {
    Gateway::new(settings).expect("a gateway")
}

fn target(text: &str) -> Target {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

async fn post(gateway: &Gateway, url: &str) -> Result<Answered, NotPosted> {
    gateway.post(&target(url), &[("webhook-id", "msg_1".into())], Bytes::from_static(b"{\"a\":1}")).await
}

async fn refused(gateway: &Gateway, url: &str) -> String {
    match post(gateway, url).await {
        Ok(answered) => panic!("{url}: {answered:?}"),
        Err(error) => error.to_string(),
    }
}

fn status(status: u16) -> Answered {
    Answered { status, retry_after: None }
}

#[tokio::test]
async fn it_posts_over_verified_tls() {
    let (server, gateway) = (Server::tls().await, gateway(settings()));
    let url = format!("https://a.example.test:{}/hook?x=1", server.port());
    assert_eq!(post(&gateway, &url).await.expect("an answer"), status(200));
    let seen = server.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/hook?x=1"));
    assert_eq!((&seen.body[..], &seen.headers["webhook-id"]), (&b"{\"a\":1}"[..], &"msg_1".parse().expect("a value")));
    assert_eq!(seen.headers["content-type"], "application/json");
    assert_eq!(seen.headers["host"], format!("a.example.test:{}", server.port()));

    let stranger = Server::shows(Shown { issuer: Some(issuer("a stranger")), ..Shown::default() }).await;
    let told = refused(&gateway, &format!("https://a.example.test:{}/", stranger.port())).await;
    assert!(told.contains("unknown issuer"), "{told}");
    assert!(stranger.seen().is_empty());
}

/// Where the redirect leads is listed and answers, as the control shows: it is the redirect that is not followed.
#[tokio::test]
async fn a_redirect_is_an_answer_and_not_a_way() {
    let (inner, redirecting) = (Server::plain().await, TcpListener::bind("127.0.0.1:0").await.expect("a listener"));
    let port = redirecting.local_addr().expect("an address").port();
    let location = format!("http://127.0.0.1:{}/admin", inner.port());
    let head = format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    tokio::spawn(async move {
        let (mut client, _) = redirecting.accept().await.expect("a client");
        read_request(&mut client).await;
        client.write_all(head.as_bytes()).await.expect("sent");
    });
    let gateway = gateway(settings());
    assert_eq!(post(&gateway, &format!("http://127.0.0.1:{port}/")).await.expect("an answer"), status(307));
    assert_eq!(inner.connections.load(Ordering::Relaxed), 0);
    assert_eq!(post(&gateway, &location).await.expect("the control"), status(200));
    assert_eq!(inner.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn private_addresses_are_refused_unless_listed() {
    let server = Server::tls().await;
    let port = server.port();
    let mut unlisted = settings();
    unlisted.private.clear();
    let mut names =
        vec![("meta.test", "169.254.169.254"), ("ten.test", "10.1.2.3"), ("mapped.test", "::ffff:127.0.0.1")];
    names.extend([("nat64.test", "64:ff9b::7f00:1"), ("six.test", "::1"), ("zero.test", "0.0.0.0")]);
    for (name, address) in names {
        unlisted.hosts.insert(name.into(), vec![address.parse::<IpAddr>().expect("an address")]);
    }
    let fenced = gateway(unlisted);
    for host in [
        "a.example.test",
        "meta.test",
        "ten.test",
        "mapped.test",
        "nat64.test",
        "six.test",
        "zero.test",
        "127.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "169.254.169.254",
        "[::ffff:a9fe:a9fe]",
    ] {
        for scheme in ["https", "http"] {
            let told = refused(&fenced, &format!("{scheme}://{host}:{port}/x")).await;
            assert!(told.contains("private ones only where the operator lists them"), "{host}: {told}");
            assert!(!told.contains("/x"), "{told}");
        }
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
    let open = gateway(settings());
    assert_eq!(post(&open, &format!("https://a.example.test:{port}/")).await.expect("the control"), status(200));
    for never in ["169.254.169.254", "[::ffff:169.254.169.254]", "0.0.0.0"] {
        let told = refused(&open, &format!("https://{never}:{port}/")).await;
        assert!(told.contains("not dialled"), "{told}");
    }
}

#[tokio::test]
async fn plain_http_is_for_listed_addresses_alone() {
    let server = Server::plain().await;
    let mut settings = settings();
    settings.hosts.insert("public.test".into(), vec![IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8))]);
    let mixed = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8))];
    settings.hosts.insert("mixed.test".into(), mixed);
    let gateway = gateway(settings);
    for name in ["public.test", "mixed.test"] {
        let told = refused(&gateway, &format!("http://{name}:{}/", server.port())).await;
        assert!(told.contains("8.8.8.8 is not listed") && told.contains("https"), "{told}");
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
    let url = format!("http://a.example.test:{}/", server.port());
    assert_eq!(post(&gateway, &url).await.expect("the control"), status(200));
}

#[tokio::test]
async fn a_name_that_turns_private_between_two_posts_is_not_dialled() {
    let dns = Dns::start(vec![vec![Ipv4Addr::LOCALHOST], vec![Ipv4Addr::new(127, 99, 0, 1)]]).await;
    let server = Server::plain().await;
    let mut settings = settings();
    // 127.0.0.1 stands for where it may go, the rest of loopback for where it may not
    (settings.dns, settings.private) = (vec![dns.address], vec!["127.0.0.1/32".parse().expect("a range")]);
    let gateway = gateway(settings);
    let url = format!("http://rebind.test:{}/", server.port());
    assert_eq!(post(&gateway, &url).await.expect("an answer"), status(200));
    assert_eq!(dns.asked(), 2, "resolved once, for both families: the vetted answer is the dialled one");
    let told = refused(&gateway, &url).await;
    assert!(told.contains("127.99.0.1"), "{told}");
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_servers_own_listener_is_kept_away() {
    let server = Server::plain().await;
    let (gateway, url) = (gateway(settings()), format!("http://127.0.0.1:{}/", server.port()));
    assert_eq!(post(&gateway, &url).await.expect("the control"), status(200));
    gateway.keep_away(server.address);
    let told = refused(&gateway, &url).await;
    assert!(told.contains("this server itself"), "{told}");
}

async fn read_request(client: &mut TcpStream) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.ends_with(b"{\"a\":1}") {
        let count = client.read(&mut buffer).await.expect("a request");
        assert!(count > 0, "it went away");
        seen.extend_from_slice(&buffer[..count]);
    }
}

/// A listener whose one client is handed over when its whole request was read; then time is the test's.
async fn held(gateway: &Gateway) -> (TcpStream, tokio::task::JoinHandle<Result<Answered, NotPosted>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let url = format!("http://127.0.0.1:{}/", listener.local_addr().expect("an address").port());
    let posting = gateway.clone();
    let posted = tokio::spawn(async move { post(&posting, &url).await });
    let (mut client, _) = listener.accept().await.expect("a client");
    read_request(&mut client).await;
    tokio::time::pause();
    (client, posted)
}

#[tokio::test]
async fn a_target_that_hangs_or_drips_is_given_thirty_seconds() {
    let gateway = gateway(settings());
    let (client, posted) = held(&gateway).await;
    let began = Instant::now();
    let told = posted.await.expect("an end").expect_err("no answer").to_string();
    assert!(told.contains("within 30 s"), "{told}");
    assert!(began.elapsed() <= Duration::from_secs(31), "{:?}", began.elapsed());
    drop(client);
    tokio::time::resume();

    let (mut client, posted) = held(&gateway).await;
    let dripping = tokio::spawn(async move {
        let head = b"HTTP/1.1 200 OK\r\nX-Long: ".iter().chain(std::iter::repeat(&b'x'));
        for byte in head {
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    let told = posted.await.expect("an end").expect_err("no whole head").to_string();
    assert!(told.contains("within 30 s"), "{told}");
    assert!(began.elapsed() <= Duration::from_secs(31), "{:?}", began.elapsed());
    dripping.await.expect("it ends, since the connection was closed");
}

#[tokio::test]
async fn a_status_counts_whatever_becomes_of_the_body() {
    let gateway = gateway(settings());
    let (mut client, posted) = held(&gateway).await;
    client.write_all(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 100\r\n\r\nx").await.expect("sent");
    let answered = posted.await.expect("an end").expect("an answer");
    assert_eq!(answered, Answered { status: 503, retry_after: Some("7".into()) });
    drop(client);
    tokio::time::resume();

    let (mut client, posted) = held(&gateway).await;
    tokio::time::resume();
    let endless = tokio::spawn(async move {
        let chunk = [b'x'; 16 * 1024];
        let mut sent = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        let mut count = 0_usize;
        while sent.is_ok() {
            sent = client.write_all(&chunk).await;
            count += chunk.len();
        }
        count
    });
    assert_eq!(posted.await.expect("an end").expect("an answer"), status(200));
    let count = endless.await.expect("it ends, since the connection was closed");
    assert!(count < 64 << 20, "what the sockets hold, and no more: {count}");
}

#[tokio::test]
async fn what_cannot_be_reached_is_told_in_words() {
    let gateway = gateway(settings());
    // nobody listens there, and nobody else gets it
    let taken = TcpSocket::new_v4().expect("a socket");
    taken.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let address = taken.local_addr().expect("an address");
    let told = refused(&gateway, &format!("http://{address}/")).await;
    assert_eq!(told, format!("{address} cannot be reached: connection refused"));

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        for answer in [&b""[..], b"SSH-2.0-nonsense\r\n\r\n"] {
            let (mut client, _) = listener.accept().await.expect("a client");
            read_request(&mut client).await;
            client.write_all(answer).await.expect("sent");
        }
    });
    for says in ["closed without an answer", "not HTTP"] {
        let told = refused(&gateway, &format!("http://{address}/")).await;
        assert!(told.contains(says), "{told}");
    }
}
