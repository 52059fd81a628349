//! Two sandboxes of the same kind beside each other: neither sees, signals, reads nor reaches the other. Each control
//! is the same look by another process of the sandbox itself.

use std::os::{
    linux::net::SocketAddrExt as _,
    unix::net::{SocketAddr, UnixListener, UnixStream},
};

use sandbar_api::StartProcess;

use crate::{
    attack::{
        Attack, Class,
        Control::{self, Host},
        Finding, act,
    },
    stage::{Stage, Target, recipe},
    support::{Outcome, until},
};

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, other, own| Attack::act(Class::Neighbours, name, other, Control::Act("in the sandbox itself", own));
    vec![
        doing("processes", act!(processes), act!(own_processes)),
        doing("signals", act!(signals), act!(own_signals)),
        doing("files", act!(files), act!(own_files)),
        doing("abstract_socket", act!(abstract_socket), act!(own_abstract_socket)),
        doing("loopback", act!(loopback), act!(own_loopback)),
        doing("shared_memory", act!(shared_memory), act!(own_shared_memory)),
        doing("message_queue", act!(message_queue), act!(own_message_queue)),
        Attack::act(Class::Neighbours, "uids", act!(uids), Control::Act("of itself", act!(own_uids))),
        Attack::shell(Class::Neighbours, "files_of_all_sandboxes", LOCAL, Host),
        Attack::act(
            Class::Neighbours,
            "abstract_socket_of_the_host",
            act!(host_abstract),
            Control::Act("on the host", act!(host_abstract_itself)),
        ),
        Attack::act(
            Class::Neighbours,
            "loopback_of_the_host",
            act!(host_loopback),
            Control::Act("on the host", act!(host_loopback_itself)),
        ),
        Attack::act(
            Class::Neighbours,
            "inherited_environment",
            act!(environment),
            Control::Act("of the server", act!(server_environment)),
        ),
    ]
}

const LOCAL: &str = "[ -d \"$SANDBAR_HOME/local\" ] && echo escaped: $(ls \"$SANDBAR_HOME/local\" | head -n 2) || echo contained: not there";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Looker {
    Neighbour,
    Itself,
}

/// A sandbox in which `setup` runs until it says something, and one that looks for it.
async fn look(
    stage: &Stage,
    target: &Target,
    looker: Looker,
    off: &[&str],
    setup: &str,
    attempt: &str,
) -> Outcome<Finding> {
    let text = recipe(target.profile, "", off);
    let victim = stage.fresh(target.profile, &text).await?;
    let request = StartProcess { argv: ["sh", "-c", setup].map(str::to_owned).to_vec(), ..StartProcess::default() };
    let process = stage.client.start_process(&victim.id, &request).await?.id.to_string();
    until("the neighbour is ready", async || Ok(stage.client.process(&victim.id, &process).await?.output.end > 0))
        .await?;
    let other = stage.target(target.profile, &text).await?;
    let ran = stage.sh(if looker == Looker::Itself { &victim } else { &other }, attempt).await?;
    stage.delete(&victim).await?;
    Finding::parse(&ran.stdout).ok_or_else(|| format!("no verdict: {}{}", ran.stdout, ran.stderr).into())
}

macro_rules! looks {
    ($($other:ident $own:ident $off:expr, $setup:expr, $attempt:expr;)*) => {
        $(
            async fn $other(stage: &Stage, target: &Target) -> Outcome<Finding> {
                look(stage, target, Looker::Neighbour, $off, $setup, $attempt).await
            }
            async fn $own(stage: &Stage, target: &Target) -> Outcome<Finding> {
                look(stage, target, Looker::Itself, $off, $setup, $attempt).await
            }
        )*
    };
}

/// Says that it is ready when the process that is looked for has begun, and not before.
const SLEEPER: &str = "sleep 4444 &
until tr '\\0' ' ' < /proc/$!/cmdline | grep -q '^sleep'; do sleep 0.01; done
echo ready; wait";

const FIND: &str = "for process in /proc/[0-9]*; do
  [ $process = /proc/$$ ] && continue
  tr '\\0' ' ' < $process/cmdline 2>/dev/null | grep -q '^sleep 4[4]44' && found=${process#/proc/}
done";

looks! {
    processes own_processes &[], SLEEPER,
        &format!("{FIND}; [ -n \"$found\" ] && echo escaped: process $found || echo contained: not seen");
    signals own_signals &[], SLEEPER,
        &format!("{FIND}; for pid in $found $(seq 2 300); do [ -z \"$found\" ] && break; kill -0 $pid 2>/dev/null && {{ echo escaped: $pid; exit; }}; done; echo contained: no such process");
    files own_files &[], "for place in /tmp /dev/shm /workspace /var/tmp /run /home/agent; do (echo neighbour > $place/mark) 2>/dev/null; done; echo ready; sleep 4444",
        "found=$(cat /tmp/mark /dev/shm/mark /workspace/mark /var/tmp/mark /run/mark /home/agent/mark 2>/dev/null | head -n 1); [ -n \"$found\" ] && echo escaped: $found || echo contained: none is there";
    abstract_socket own_abstract_socket &[], "exec /workspace/attacks --inside abstract_listen sandbar-neighbour",
        "/workspace/attacks --inside abstract_connect sandbar-neighbour";
    loopback own_loopback &[], "exec /workspace/attacks --inside tcp_listen 4711",
        "/workspace/attacks --inside tcp 127.0.0.1:4711";
    shared_memory own_shared_memory &[], "/workspace/attacks --inside shm_make 4711; sleep 4444",
        "/workspace/attacks --inside shm_find 4711";
    // Without Landlock, which knows no place for queues and refuses them all.
    message_queue own_message_queue &["landlock"], "/workspace/attacks --inside queue_make; sleep 4444",
        "/workspace/attacks --inside queue_find";
}

/// The uid on the host, as the owner of what the sandbox writes to its own workspace.
async fn uid(stage: &Stage, target: &Target) -> Outcome<String> {
    Ok(stage.sh(target, "cat /proc/self/uid_map").await?.stdout.split_whitespace().collect::<Vec<_>>().join(" "))
}

async fn uids(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if !stage.is_root {
        return Ok(Finding::not_run("an ordinary user has one uid for all sandboxes; their reports say so"));
    }
    let other = stage.fresh(target.profile, &recipe(target.profile, "", &[])).await?;
    let (one, two) = (uid(stage, target).await?, uid(stage, &other).await?);
    stage.delete(&other).await?;
    Ok(if one == two {
        Finding::escaped(format!("both are {one}"))
    } else {
        Finding::contained(format!("{one}, {two}"))
    })
}

async fn own_uids(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (one, two) = (uid(stage, target).await?, uid(stage, target).await?);
    Ok(if one == two { Finding::escaped("both are the same") } else { Finding::contained("they differ") })
}

const ABSTRACT: &str = "sandbar-attacks-of-the-host";

async fn host_abstract(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let name = format!("{ABSTRACT}-{}", std::process::id());
    let _held = named_listener(&name)?;
    stage.probe(target, &["abstract_connect", &name]).await
}

/// Of the host, for as long as it is held.
fn named_listener(name: &str) -> Outcome<UnixListener> {
    Ok(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?)
}

async fn host_abstract_itself(_: &Stage, _: &Target) -> Outcome<Finding> {
    let name = format!("{ABSTRACT}-{}", std::process::id());
    let _held = named_listener(&name)?;
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?)?;
    Ok(Finding::escaped("connected"))
}

async fn host_loopback(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["tcp", &stage.address()?]).await
}

async fn host_loopback_itself(stage: &Stage, _: &Target) -> Outcome<Finding> {
    std::net::TcpStream::connect(stage.address()?)?;
    Ok(Finding::escaped("connected to the server"))
}

/// Nothing that the server was started with is in a process of a sandbox.
async fn environment(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = stage.sh(target, "cat /proc/self/environ /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | cut -d= -f1 | sort -u | tr '\\n' ' '").await?;
    let leaked: Vec<_> = ran
        .stdout
        .split_whitespace()
        .filter(|name| {
            name.starts_with("SANDBAR_")
                || *name == "OLDPWD"
                || name.starts_with("CARGO") && *name != "CARGO_HTTP_CAINFO"
        })
        .collect();
    Ok(if leaked.is_empty() { Finding::contained(ran.stdout.trim()) } else { Finding::escaped(leaked.join(" ")) })
}

async fn server_environment(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let text = std::fs::read(format!("/proc/{}/environ", stage.server.pid()))?;
    let found = String::from_utf8_lossy(&text).contains("SANDBAR_HOME=");
    Ok(if found { Finding::escaped("SANDBAR_HOME is there") } else { Finding::contained("it is not there") })
}
