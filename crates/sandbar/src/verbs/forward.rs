//! `forward`: ports of this machine that lead to servers in a sandbox. Each connection here is one there.

use std::{net::Ipv4Addr, time::Duration};

use sandbar_api::{Code, network::GATE_PORT};
use sandbar_client::{Client, Error};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::sleep,
};

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    text::inert,
};

/// Reach servers that run in a sandbox, through ports of this machine
///
/// Listens on 127.0.0.1 until Ctrl-C, also while the server is restarted; every user of this machine can connect there. The
/// sandbox gets no way out by it: connections are opened from here only.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar forward web 8080            127.0.0.1:8080 here is port 8080 there; if taken, a free one
  sandbar forward web 8080:3000 5432  127.0.0.1:3000 for port 8080, and another one")]
pub(crate) struct Forward {
    /// The sandbox's id or name
    sandbox: String,

    /// The port inside, and the one here [default: the same number, or else a free one]
    #[arg(required = true, value_name = "PORT[:LOCAL]", value_parser = ports)]
    ports: Vec<Ports>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    inside: u16,
    /// Absent: the same, or a free one.
    local: Option<u16>,
}

fn ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is no port; write PORT or PORT:LOCAL"));
    let (inside, local) = match text.split_once(':') {
        Some((inside, local)) => (port(inside)?, Some(port(local)?)),
        None => (port(text)?, None),
    };
    if inside == 0 {
        return Err("there is no port 0 to connect to".into());
    }
    if inside == GATE_PORT {
        return Err(format!("port {GATE_PORT} is the sandbox's own way out, for programs inside only"));
    }
    Ok(Ports { inside, local: local.filter(|local| *local != 0) })
}

/// Out of descriptors, most likely: accepting again at once would spin.
const BREATH: Duration = Duration::from_millis(100);

/// What leads from one port here to one there.
#[derive(Clone)]
struct Lane {
    client: Client,
    /// By id: another sandbox that gets the name is not meant.
    sandbox: String,
    port: u16,
    print: Printer,
}

pub(crate) async fn forward(args: &Forward, context: &Context) -> Result<u8, Failure> {
    let (client, print) = (context.client()?, context.print);
    let listen = |kind| signal(kind).map_err(Failure::io("failed to listen for signals"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let sandbox = client.sandbox(&args.sandbox).await?;
    let mut listeners = vec![];
    for ports in &args.ports {
        listeners.push((bind(*ports).await?, ports.inside));
    }
    let mut lanes = JoinSet::new();
    for (listener, port) in listeners {
        let local = listener.local_addr().map_err(Failure::io("failed to listen"))?;
        if print.json {
            print.json(&serde_json::json!({"sandbox": sandbox.id, "port": port, "local": local.to_string()}))?;
        } else {
            print.line(format!("forwarding {local} to port {port} of {}", inert(&sandbox.name)))?;
        }
        let lane = Lane { client: client.clone(), sandbox: sandbox.id.to_string(), port, print };
        lanes.spawn(lane.serve(listener));
    }
    tokio::select! {
        _ = interrupt.recv() => Ok(exit::OK),
        _ = terminate.recv() => Ok(exit::OK),
        Some(Ok(hopeless)) = lanes.join_next() => Err(hopeless),
    }
}

async fn bind(ports: Ports) -> Result<TcpListener, Failure> {
    let on = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    match ports.local {
        Some(local) => on(local).await.map_err(|error| {
            Failure::new(exit::FAILED, format!("failed to listen on 127.0.0.1:{local}: {error}"))
                .hint(format!("Choose another port, or `{}` alone for any that is free.", ports.inside))
        }),
        None => match on(ports.inside).await {
            Ok(listener) => Ok(listener),
            Err(_) => on(0).await.map_err(Failure::io("failed to listen on 127.0.0.1")),
        },
    }
}

impl Lane {
    /// Returns when no connection can succeed any more.
    async fn serve(self, listener: TcpListener) -> Failure {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((local, _)) => drop(connections.spawn(self.clone().connection(local))),
                    Err(error) => {
                        self.print.warn(format!("cannot accept a connection: {error}"));
                        sleep(BREATH).await;
                    }
                },
                Some(ended) = connections.join_next() => if let Ok(Err(hopeless)) = ended {
                    return hopeless;
                },
            }
        }
    }

    async fn connection(self, mut local: TcpStream) -> Result<(), Failure> {
        let outcome = self.carry(&mut local).await;
        let Err(failed) = outcome else { return Ok(()) };
        // Whoever connected must not take what broke for what ended.
        let _reset = rustix::net::sockopt::set_socket_linger(&local, Some(Duration::ZERO));
        match failed {
            Failed::Refused(error) if is_final(&error) => Err(error.into()),
            Failed::Refused(error) => {
                self.tell("failed", error.into());
                Ok(())
            }
            Failed::Broke(error) => {
                self.tell("broke", Failure::new(exit::FAILED, error.to_string()));
                Ok(())
            }
        }
    }

    async fn carry(&self, local: &mut TcpStream) -> Result<(), Failed> {
        local.set_nodelay(true).map_err(Failed::Broke)?;
        let mut remote = self.client.dial(&self.sandbox, self.port).await.map_err(Failed::Refused)?;
        copy_bidirectional(local, &mut remote).await.map(drop).map_err(Failed::Broke)
    }

    fn tell(&self, verb: &str, failure: Failure) {
        match failure {
            Failure::Told { what, fix, .. } if !self.print.json => {
                let text = format!("{what} {}", fix.unwrap_or_default());
                self.print.say(format!("a connection to port {} {verb}: {}", self.port, inert(text.trim_end())));
            }
            failure => self.print.failure(&failure),
        }
    }
}

enum Failed {
    Refused(Error),
    Broke(std::io::Error),
}

/// The next connection would be refused as well.
fn is_final(error: &Error) -> bool {
    let codes = [Code::SandboxGone, Code::UnknownSandbox, Code::UnknownRoute, Code::Unauthenticated, Code::Forbidden];
    error.code().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_two_numbers() {
        let pair = |inside, local| Ok(Ports { inside, local });
        assert_eq!(ports("8080"), pair(8080, None));
        assert_eq!(ports("8080:3000"), pair(8080, Some(3000)));
        assert_eq!(ports("8080:0"), pair(8080, None));
        for wrong in
            ["", "0", "0:1", "65536", "1:65536", "a", "1:", ":1", "1:2:3", "-1", "127.0.0.1:80", "7228", "7228:80"]
        {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_told_if_it_was_named_and_replaced_if_not() -> std::io::Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = taken.local_addr()?.port();
        assert!(bind(Ports { inside: 80, local: Some(port) }).await.is_err());
        let free = bind(Ports { inside: port, local: None }).await.map_err(|_| std::io::ErrorKind::AddrInUse)?;
        assert_ne!(free.local_addr()?.port(), port);
        assert!(free.local_addr()?.ip().is_loopback());
        Ok(())
    }
}
