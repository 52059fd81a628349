//! The way out: taken by a server, kept by the guest while there is none, and the same for whoever comes next.

use std::net::{Ipv4Addr, SocketAddr};

use sandbar_guest::protocol::TrustRequest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    Case, Outcome, Subject,
    cases::{said, spec},
    inside::run,
    same,
};
use crate::{Carried, Gate, Guest, Provider, Relay, cases};

pub(super) fn all<S: Subject>() -> Vec<Case<S>> {
    cases![
        programs_inside_reach_the_gate_and_nothing_else,
        the_gate_outlives_the_server,
        programs_are_told_whom_to_trust,
    ]
}

/// A gate that was taken, whichever way its connections come.
enum Taken {
    Listener(TcpListener),
    Relay(Relay),
}

impl Taken {
    async fn accept(&mut self) -> Result<Carried, String> {
        match self {
            Self::Listener(listener) => match listener.accept().await {
                Ok((stream, _)) => Ok(Box::new(stream)),
                Err(error) => Err(error.to_string()),
            },
            Self::Relay(relay) => relay.connections.recv().await.ok_or_else(|| "the relay has ended".into()),
        }
    }
}

/// And where programs inside find it.
async fn take(provider: &dyn Provider, spec: &crate::Spec) -> Result<(Taken, SocketAddr), String> {
    match provider.gate(&spec.id).await.map_err(said)? {
        Gate::Listener(listener) => {
            let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            Ok((Taken::Listener(listener), address))
        }
        Gate::Relay(relay) => {
            let address = (Ipv4Addr::LOCALHOST, relay.port).into();
            Ok((Taken::Relay(relay), address))
        }
    }
}

/// Says hello through the gate, and prints what comes back.
async fn greet(guest: &Guest, address: SocketAddr) -> Result<String, String> {
    let script = format!("exec 3<>/dev/tcp/{}/{} && echo hello >&3 && cat <&3", address.ip(), address.port());
    run(guest, &format!("bash -c '{script}' 2>&1")).await.map(|ran| ran.output)
}

async fn answer(gate: &mut Taken) -> Result<String, String> {
    let told = |error: std::io::Error| error.to_string();
    let mut stream = gate.accept().await?;
    let mut heard = [0; 6];
    stream.read_exact(&mut heard).await.map_err(told)?;
    stream.write_all(b"and you\n").await.map_err(told)?;
    stream.shutdown().await.map_err(told)?;
    Ok(String::from_utf8_lossy(&heard).into_owned())
}

async fn programs_inside_reach_the_gate_and_nothing_else<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let (mut gate, address) = take(&*provider, &spec).await?;
    let (heard, said_back) = tokio::try_join!(answer(&mut gate), greet(&guest, address))?;
    same("heard", &heard.as_str(), &"hello\n")?;
    same("answered", &said_back.as_str(), &"and you\n")?;
    // The host has the same port free on its own loopback: the sandbox's is another.
    let outside = TcpListener::bind(address).await.map_err(|error| format!("the gate is on the host: {error}"))?;
    drop(outside);
    // An interface that leads nowhere says nothing; that a listener is out of reach is then shown elsewhere.
    let may_be_silent = subject.differs().more_interfaces;
    let patience = if may_be_silent { 5 } else { 30 };
    let route = run(&guest, &format!("timeout {patience} bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>&1")).await?;
    let silent = may_be_silent && route.code == 124;
    if route.code == 0 || !(silent || route.output.contains("unreachable")) {
        return Err(format!("there is a route out: {route:?}"));
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn the_gate_outlives_the_server<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let (gate, address) = take(&*provider, &spec).await?;
    drop((gate, provider));
    let provider = subject.open().await?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    // Nobody accepts when it connects: it waits for who comes.
    let late = async {
        let (mut gate, _) = take(&*provider, &spec).await?;
        answer(&mut gate).await
    };
    let (heard, said_back) = tokio::try_join!(late, greet(&guest, address))?;
    same("heard", &heard.as_str(), &"hello\n")?;
    same("answered", &said_back.as_str(), &"and you\n")?;
    provider.stop(&spec.id).await.map_err(said)?;
    if provider.gate(&spec.id).await.is_ok() {
        return Err("a stopped sandbox has a gate".into());
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn programs_are_told_whom_to_trust<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let mut guest = provider.connect(&spec.id).await.map_err(said)?;
    let bundled = "grep -c MARK /run/sandbar/ca-certificates.crt; cat /run/sandbar/ca.pem";
    let mut trust = async |authority: &str, bundle| {
        let request = TrustRequest { authority: authority.into(), bundle };
        guest.trust(request).await.map(drop).map_err(|status| status.to_string())
    };
    trust("MARK 1\n", false).await?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("before the bundle", &run(&guest, bundled).await?.output.as_str(), &"0\nMARK 1\n")?;
    trust("MARK 2\n", true).await?;
    same("with the bundle", &run(&guest, bundled).await?.output.as_str(), &"1\nMARK 2\n")?;
    // The bundle follows the authority, also when that is all that is said.
    trust("MARK 3\n", false).await?;
    let three =
        "grep -c 'MARK 3' /run/sandbar/ca-certificates.crt; grep -c 'BEGIN CERT' /run/sandbar/ca-certificates.crt";
    let ran = run(&guest, three).await?;
    let mut lines = ran.output.lines();
    same("the bundle's last", &lines.next(), &Some("1"))?;
    same(
        "the system's are kept",
        &(lines.next() != Some("0")),
        &std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists(),
    )?;
    provider.destroy(&spec.id).await.map_err(said)
}
