//! The guest of a pod, as the ordinary user that it is there: in a network and a PID namespace of its own, in which this
//! program runs once more as the server. What Kubernetes would have dropped for it is dropped by setpriv.

use std::{
    io::Read as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sandbar_api::network::GATE_PORT;
use sandbar_guest::protocol::{ProbeRequest, REACH_KUBERNETES};
use sandbar_provider::{
    Guest, cases,
    identity::Identity,
    suite::{Case, Outcome, run, same},
    tls::{self, Carries},
};

use crate::{Home, is_root, made, spec};

/// The first argument of this program as the server in there.
pub(crate) const INSIDE: &str = "pod-inside";
const LISTEN: &str = "127.0.0.1:7229";
const LAYERS: &str =
    r#"{"no_new_privs":"required","capabilities":"required","seccomp":"required","landlock":"required"}"#;

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![a_pod_is_fenced];
    for case in &mut cases {
        case.not_here =
            || (!is_root()).then(|| "only root can become the user without capabilities that a pod has".into());
    }
    cases
}

async fn a_pod_is_fenced(home: &Home) -> Outcome {
    let text = |error: std::io::Error| error.to_string();
    let place = home.0.join("pod");
    let own = std::env::current_exe().map_err(text)?;
    let installed = Command::new(&own).args(["guest", "install"]).arg(made(&place)?).output().map_err(text)?;
    same("installed", &installed.status.code(), &Some(0))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    unshare.arg("PATH=$PATH:/sbin:/usr/sbin; ip link set lo up && exec \"$0\" \"$@\"").arg(place.join("sandbar"));
    let told = unshare.arg(INSIDE).arg(place.join("sandbar")).output().map_err(text)?;
    std::fs::remove_dir_all(&place).map_err(text)?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match told.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", said(&told.stdout), said(&told.stderr))),
    }
}

/// The whole of it, in there.
pub(crate) fn inside(program: &Path) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        is_in_force(program).await?;
        refuses_what_it_cannot_enforce(program)?;
        serves_without_a_server(program)
    })
}

/// A pod's container, without its view.
fn container(user: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if user != 0 {
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(program).env_clear();
    command.env("PATH", "/usr/bin:/bin").env("SANDBAR_OPEN_FILES", "64").env("SANDBAR_LAYERS", LAYERS);
    command.stdin(Stdio::null());
    command
}

/// In a user namespace with one uid there is no other.
fn user() -> u32 {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.split_whitespace().nth(2).is_some_and(|count| count != "1") { 65534 } else { 0 }
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn is_in_force(program: &Path) -> Outcome {
    let identity = Identity::from_seed([7; 32]).map_err(|error| error.to_string())?;
    let mut command = container(user(), program);
    command.args(["guest", "pod"]).env("SANDBAR_SERVER_KEYS", BASE64_STANDARD.encode(identity.public_key()));
    command.env("SANDBAR_GUEST_LISTEN", LISTEN).env("SECRET_OF_THE_POD", "x");
    command.env("KUBERNETES_SERVICE_HOST", "192.0.2.1").env("KUBERNETES_SERVICE_PORT", "443");
    let mut started = Started(command.spawn().map_err(|error| error.to_string())?);
    let guest = connect(&identity).await?;
    tls::bind(&guest, &spec("pod").id).await.map_err(|error| error.to_string())?;

    let reach = [LISTEN, "127.0.0.1:1", REACH_KUBERNETES].map(Into::into).into();
    let facts = guest.clone().probe(ProbeRequest { reach }).await;
    let facts = facts.map_err(|status| status.message().to_owned())?.into_inner().facts;
    let own = user();
    for (key, wanted) in [
        ("status.Uid", format!("{own} {own} {own} {own}").as_str()),
        ("status.NoNewPrivs", "1"),
        ("status.Seccomp", "2"),
        ("status.CapEff", "0000000000000000"),
        ("status.CapBnd", "0000000000000000"),
        ("try.write_proc", "EACCES"),
        ("try.ptrace", "EPERM"),
        ("try.unshare_user", "EPERM"),
        ("try.io_uring", "EPERM"),
        ("try.clone3", "ENOSYS"),
        ("rlimit.nofile", "64 64"),
        ("interfaces", "lo"),
        ("service_account", "ENOENT"),
        ("reach.127.0.0.1:7229", "ok"),
        ("reach.127.0.0.1:1", "ECONNREFUSED"),
        ("reach.192.0.2.1:443", "ENETUNREACH"),
    ] {
        same(key, &facts.get(key).map_or("not told", String::as_str), &wanted)?;
    }
    same("the kernel is told", &facts.get("kernel").is_some_and(|told| told.contains("ersion")), &true)?;

    // The same uid, and yet out of reach; the control is a process like any other of this uid.
    let pid = started.0.id();
    let mut plain = container(own, Path::new("sleep"));
    let plain = Started(plain.arg("60").spawn().map_err(|error| error.to_string())?);
    let other = plain.0.id();
    for (attempt, wanted) in [
        (format!("cat /proc/{pid}/environ"), "refused"),
        (format!("ls /proc/{pid}/fd"), "refused"),
        (format!("head -c 1 /proc/{pid}/mem"), "refused"),
        (format!("prlimit --pid {pid} --nofile=3"), "refused"),
        ("echo x > /proc/self/comm".into(), "refused"),
        (format!("test -e /proc/{pid}"), "through"),
    ] {
        let script = format!("{{ {attempt}; }} >/dev/null 2>&1 && echo through || echo refused");
        same(&attempt, &run(&guest, &script).await?.output.trim_end(), &wanted)?;
    }
    let mut control = container(own, Path::new("cat"));
    // It is exec'd by setpriv, and its environment is then its own.
    let read = control.arg(format!("/proc/{other}/environ")).output().map_err(|error| error.to_string())?;
    same("control", &String::from_utf8_lossy(&read.stdout).contains("SANDBAR_LAYERS"), &true)?;
    same(
        "environment",
        &run(&guest, "env | grep -c SANDBAR_; echo $SECRET_OF_THE_POD").await?.output.as_str(),
        &"0\nx\n",
    )?;

    let gate = std::net::TcpStream::connect(("127.0.0.1", GATE_PORT)).map_err(|error| error.to_string())?;
    let mut calls =
        guest.clone().accept(tokio_stream::pending()).await.map_err(|status| status.to_string())?.into_inner();
    let first = calls.message().await.map_err(|status| status.to_string())?;
    same("the gate's connection is carried", &first.is_some(), &true)?;
    drop(gate);

    let ended = rustix::process::Pid::from_child(&started.0);
    rustix::process::kill_process(ended, rustix::process::Signal::TERM).map_err(|error| error.to_string())?;
    let status = started.0.wait().map_err(|error| error.to_string())?;
    same("how it ended", &status.code(), &Some(0))
}

async fn connect(identity: &Identity) -> Result<Guest, String> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let dial = || tokio::net::TcpStream::connect(LISTEN);
        match tls::connect(identity, Carries::Calls, None, dial).await {
            Ok((guest, _)) => return Ok(guest),
            Err(error) if Instant::now() > deadline => return Err(error.to_string()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn finished(mut command: Command) -> Result<Output, String> {
    command.output().map_err(|error| error.to_string())
}

fn refuses_what_it_cannot_enforce(program: &Path) -> Outcome {
    for (layers, said) in [
        (r#"{"no_exec":"required"}"#, "no execution outside the workspace cannot be enforced"),
        (r#"{"read_only_root":"required"}"#, "readOnlyRootFilesystem"),
        (r#"{"landlock":"sometimes"}"#, "SANDBAR_LAYERS is not understood"),
    ] {
        let mut command = container(user(), program);
        command.args(["guest", "pod"]).env("SANDBAR_SERVER_KEYS", "MAA=").env("SANDBAR_LAYERS", layers);
        let told = finished(command)?;
        let error = String::from_utf8_lossy(&told.stderr).into_owned();
        same(&error, &(told.status.success(), error.contains(said)), &(false, true))?;
    }
    let mut command = container(user(), program);
    command.args(["guest", "pod"]);
    same("with nobody to serve", &finished(command)?.status.code(), &Some(2))
}

/// The older runtime, on the container's own address.
fn serves_without_a_server(program: &Path) -> Outcome {
    let mut command = container(user(), program);
    command.args(["guest", "pod", "--runtimes", "sandboxd,legacy", "--root", "/tmp", "--listen", "127.0.0.1"]);
    let _started = Started(command.spawn().map_err(|error| error.to_string())?);
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut stream = loop {
        match std::net::TcpStream::connect("127.0.0.1:8888") {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > deadline => return Err(error.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let body = r#"{"command":"sh -c 'echo $((6*7)); grep NoNewPrivs /proc/self/status'"}"#;
    let head = "POST /execute HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    std::io::Write::write_all(&mut stream, request.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    same(&answer, &(answer.contains(r"42\n"), answer.contains(r"NoNewPrivs:\t1")), &(true, true))
}
