//! Which addresses are dialled: resolved after the rules, every answer vetted, literals too.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use sandbar_policy::Effect::{Allow, Deny};
use tokio::net::UdpSocket;

use crate::{
    egress::server::Server,
    egress::world::{World, settings},
};

/// Answers A questions with the addresses it is given, one set after the other, and AAAA with none.
pub(crate) struct Dns {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Dns {
    pub(crate) async fn start(answers: Vec<Vec<Ipv4Addr>>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (names, turn) = (Arc::clone(&asked), AtomicUsize::new(0));
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((count, from)) = socket.recv_from(&mut buffer).await {
                let question = &buffer[12..count];
                let end = question.iter().position(|byte| *byte == 0).expect("a name") + 1;
                names.lock().expect("lock").push(String::from_utf8_lossy(&question[..end]).into_owned());
                let is_a = question[end..end + 2] == [0, 1];
                let addresses = if is_a {
                    let at = turn.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
                    answers[at].as_slice()
                } else {
                    &[]
                };
                let nothing = answers.iter().all(Vec::is_empty);
                let mut reply = buffer[..2].to_vec();
                reply.extend_from_slice(&[0x81, if nothing { 0x83 } else { 0x80 }, 0, 1]);
                reply.extend_from_slice(&[0, u8::try_from(addresses.len()).expect("few"), 0, 0, 0, 0]);
                reply.extend_from_slice(&question[..end + 4]);
                for ip in addresses {
                    // the name again, A, IN, not to be kept, four bytes
                    reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                    reply.extend_from_slice(&ip.octets());
                }
                socket.send_to(&reply, from).await.expect("sent");
            }
        });
        Self { address, asked }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().expect("lock").len()
    }
}

async fn asking(dns: &Dns, rules: &[(sandbar_policy::Effect, &str)], private: &str) -> World {
    let mut settings = settings();
    settings.dns = vec![dns.address];
    settings.private = vec![private.parse().expect("a range")];
    World::with(rules, settings).await
}

#[tokio::test]
async fn a_name_that_is_refused_is_never_asked_for() {
    let dns = Dns::start(vec![vec![Ipv4Addr::LOCALHOST]]).await;
    let server = Server::plain().await;
    let port = server.port();
    let world = asking(&dns, &[(Allow, &format!("allowed.test:{port}"))], "127.0.0.0/8").await;
    for name in ["leak.attacker.test", "x.allowed.test"] {
        assert!(world.connect_raw(&format!("{name}:{port}")).await.1.starts_with("HTTP/1.1 403 "));
        assert_eq!(world.plain(&format!("http://{name}:{port}/"), &[]).await.status, 403);
    }
    assert_eq!(dns.asked(), 0);
    assert_eq!(world.plain(&format!("http://allowed.test:{port}/"), &[]).await.status, 200, "the control");
    assert!(dns.asked() > 0);
}

#[tokio::test]
async fn a_name_that_turns_private_is_not_dialled() {
    let dns = Dns::start(vec![vec![Ipv4Addr::LOCALHOST], vec![Ipv4Addr::new(127, 99, 0, 1)]]).await;
    let server = Server::plain().await;
    let port = server.port();
    // 127.0.0.1 stands for the public address here, the rest of loopback for a private one
    let world = asking(&dns, &[(Allow, &format!("rebind.test:{port}"))], "127.0.0.1/32").await;
    let target = format!("rebind.test:{port}");
    let (_first, answer) = world.connect_raw(&target).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(dns.asked(), 2, "resolved once, for both families: the vetted answer is the dialled one");
    let (_, answer) = world.connect_raw(&target).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("127.99.0.1"), "{answer}");
    world.warden.denied("127.99.0.1").await;
}

#[tokio::test]
async fn one_bad_answer_spoils_all() {
    let dns = Dns::start(vec![vec![Ipv4Addr::LOCALHOST, Ipv4Addr::new(169, 254, 169, 254)]]).await;
    let server = Server::plain().await;
    let port = server.port();
    let world = asking(&dns, &[(Allow, &format!("mixed.test:{port}"))], "127.0.0.0/8").await;
    let (_, answer) = world.connect_raw(&format!("mixed.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("169.254.169.254"), "{answer}");
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_told() {
    let dns = Dns::start(vec![vec![]]).await;
    let world = asking(&dns, &[(Allow, "nowhere.test")], "127.0.0.0/8").await;
    let (_, answer) = world.connect_raw("nowhere.test:443").await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("the name does not exist"), "{answer}");
    assert_eq!(world.plain("http://nowhere.test/", &[]).await.status, 502);
}

#[tokio::test]
async fn addresses_are_vetted_however_they_are_written() {
    let server = Server::plain().await;
    let port = server.port();
    let never = ["169.254.169.254", "0.0.0.0", "10.0.0.1", "[::1]", "[::]", "[fe80::1]", "[64:ff9b::a9fe:a9fe]"];
    let rules: Vec<String> = never.iter().chain(&["127.0.0.1", "*"]).map(|host| format!("{host}:*")).collect();
    let rules: Vec<_> = rules.iter().map(|rule| (Allow, rule.as_str())).collect();
    let world = World::new(&rules).await;
    assert!(world.connect_raw(&format!("127.0.0.1:{port}")).await.1.starts_with("HTTP/1.1 200 "), "the control");
    for host in never.iter().chain(&["[::ffff:169.254.169.254]"]) {
        let (_, answer) = world.connect_raw(&format!("{host}:{port}")).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("not dialled"), "{host}: {answer}");
    }
    // forms that parsers read differently are no hosts at all
    for host in [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "a.example.test.",
        "[::1%25lo]",
        "user@a.example.test",
    ] {
        let (_, answer) = world.connect_raw(&format!("{host}:{port}")).await;
        let refused = answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 403 ");
        assert!(refused, "{host}: {answer}");
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_denied_address_is_denied_by_every_name() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[
        (Allow, &format!("a.example.test:{port}")),
        (Allow, &format!("b.example.test:{port} GET /")),
        (Deny, "127.0.0.1:*"),
    ])
    .await;
    let (_, answer) = world.connect_raw(&format!("a.example.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("by the rule `127.0.0.1:*`"), "{answer}");
    let reply = world.plain(&format!("http://b.example.test:{port}/"), &[]).await;
    assert!(reply.status == 403 && reply.text().contains("by the rule `127.0.0.1:*`"), "{}", reply.text());
    world.warden.denied("127.0.0.1 is refused by the rule").await;
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
    world.warden.rules(&[(Allow, &format!("a.example.test:{port}"))]);
    assert!(world.connect_raw(&format!("a.example.test:{port}")).await.1.starts_with("HTTP/1.1 200 "), "the control");
}

/// In a network of its own, where a public address can be the host's.
#[tokio::test]
async fn a_public_address_of_the_host_is_the_host() {
    const NAME: &str = "names::a_public_address_of_the_host_is_the_host";
    const INSIDE: &str = "EGRESS_TEST_INSIDE";
    const OWN: &str = "8.8.8.8";
    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe().expect("this test");
        let make =
            format!("ip link set lo up && ip addr add {OWN}/32 dev lo && touch \"$0\" && exec \"$1\" --exact {NAME}");
        let made = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        std::fs::remove_file(&made).expect("removed");
        let run = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", &make])
            .args([made.as_os_str(), program.as_os_str()])
            .env(INSIDE, "1")
            .output();
        match run {
            Ok(run) if made.exists() => assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout)),
            Ok(run) => sandbar_test_harness::not_run(
                NAME,
                &format!("no network can be made: {}", String::from_utf8_lossy(&run.stderr)),
            ),
            Err(error) => sandbar_test_harness::not_run(NAME, &format!("no network can be made: {error}")),
        }
        return;
    }
    let listener = tokio::net::TcpListener::bind((OWN, 0)).await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let mut settings = settings();
    settings.hosts.insert("a.example.test".into(), vec![OWN.parse().expect("an address")]);
    let world = World::with(&[(Allow, &format!("a.example.test:{port}"))], settings.clone()).await;
    let (_, answer) = world.connect_raw(&format!("a.example.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("an address of the host itself"), "{answer}");
    settings.private.push(format!("{OWN}/32").parse().expect("a range"));
    world.gateway.configure(settings).expect("settings");
    let (_, answer) = world.connect_raw(&format!("a.example.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "the operator listed it: {answer}");
}

#[tokio::test]
async fn odd_ports_need_a_rule() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, "a.example.test")]).await;
    for odd in [port, 22, 25, 65535] {
        assert!(world.connect_raw(&format!("a.example.test:{odd}")).await.1.starts_with("HTTP/1.1 403 "), "{odd}");
    }
    for bad in ["a.example.test:0", "a.example.test:65536", "a.example.test:x", ":443", ""] {
        let (_, answer) = world.connect_raw(bad).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 403 "), "{bad}: {answer}");
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
}
