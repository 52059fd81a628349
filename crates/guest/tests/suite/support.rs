//! A guest to test, and the few calls that every test makes.

use std::{
    collections::BTreeMap,
    error::Error,
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::{
    process::{Pid, Signal},
    thread::{CapabilitySet, CapabilitySets, Gid, Uid},
};
use sandbar_guest::{
    Entrance, Gate, Group,
    protocol::{
        CODE_KEY, Exit, FollowEvent, FollowFrom, FollowRequest, ListRequest, LookReply, LookRequest, ProcessStatus,
        SignalRequest, StartRequest, Stream, TerminalSize, WriteInputRequest, follow_event::Event,
        follow_request::Message, guest_client::GuestClient,
    },
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const SOCKET: &str = "SANDBAR_TEST_GUEST_SOCKET";
const FENCE: &str = "SANDBAR_TEST_GUEST_FENCE";
const DIRECTORY: &str = "SANDBAR_TEST_GUEST_DIRECTORY";
const GATE: &str = "SANDBAR_TEST_GUEST_GATE";
const JOINS: &str = "SANDBAR_TEST_GUEST_JOINS";

/// How a guest differs from the one that every test gets.
#[derive(Default)]
pub(crate) struct Variant {
    /// Workloads are nobody, without capabilities.
    pub(crate) fenced: bool,
    /// Runs as an argument of this: what it changes of its surroundings before it becomes the guest.
    pub(crate) wrapper: Vec<&'static str>,
    /// The workload's cgroup: where it is born, and what it joins.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) joins: Vec<PathBuf>,
    /// Has a way out, which listens here.
    pub(crate) gate: Option<std::net::TcpListener>,
}

pub(crate) fn is_guest() -> bool {
    std::env::var_os(SOCKET).is_some()
}

pub(crate) fn be_guest() -> ! {
    let socket = std::env::var_os(SOCKET).unwrap_or_default();
    let fenced = std::env::var_os(FENCE).is_some();
    // Before the socket, whose appearance says that the guest has what it needs.
    let gate = gate(Path::new(&socket));
    match group().and_then(|group| Ok((group, gate?, UnixListener::bind(socket)?))) {
        Ok((group, gate, listener)) => sandbar_guest::run(sandbar_guest::Setup {
            sandbox_id: Some("sbx-test".into()),
            version: "0.0.0-test".into(),
            entrance: Some(Entrance::Unix(listener.into())),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            home: "/home/test".into(),
            user: "test".into(),
            env: BTreeMap::new(),
            confine: Box::new(if fenced { become_nobody } else { confine }),
            group,
            oom: None,
            gate,
            trust: None,
            runtimes: None,
            ends: false,
        }),
        Err(error) => {
            eprintln!("cannot start: {error}");
            std::process::exit(2)
        }
    }
}

/// Its listener comes as standard input.
fn gate(socket: &Path) -> std::io::Result<Option<Gate>> {
    if std::env::var_os(GATE).is_none() {
        return Ok(None);
    }
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(Some(Gate::Handed { listener, handout: UnixListener::bind(socket.with_extension("gate"))?.into() }))
}

fn group() -> std::io::Result<Option<Group>> {
    let joins = std::env::var(JOINS).unwrap_or_default();
    let joins: Vec<OwnedFd> = joins
        .split(':')
        .filter(|path| !path.is_empty())
        .map(|path| Ok(fs::File::options().write(true).open(path)?.into()))
        .collect::<std::io::Result<_>>()?;
    let directory = std::env::var_os(DIRECTORY).map(fs::File::open).transpose()?.map(OwnedFd::from);
    Ok((directory.is_some() || !joins.is_empty()).then_some(Group { directory, joins }))
}

fn become_nobody() -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)
}

/// Permissions must bind the workload also where root runs the tests.
fn confine() -> rustix::io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    rustix::thread::set_capabilities(None, sets)
}

pub(crate) struct Guest {
    pub(crate) client: GuestClient<Channel>,
    pub(crate) directory: TempDir,
    process: Child,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its minders then kill what they mind.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Guest {
    pub(crate) async fn start() -> Outcome<Self> {
        Self::start_as(Variant::default()).await
    }

    pub(crate) async fn start_as(variant: Variant) -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        // Fenced guests start programs as another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let socket = directory.path().join("guest.sock");
        let own = std::env::current_exe()?.into_os_string();
        let mut words = variant.wrapper.iter().map(OsString::from).chain([own]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env_clear().env(SOCKET, &socket).stdin(Stdio::null()).stdout(Stdio::null());
        if variant.fenced {
            command.env(FENCE, "1");
        }
        if let Some(group) = &variant.directory {
            command.env(DIRECTORY, group);
        }
        if !variant.joins.is_empty() {
            command.env(JOINS, std::env::join_paths(&variant.joins)?);
        }
        if let Some(gate) = variant.gate {
            command.env(GATE, "1").stdin(OwnedFd::from(gate));
        }
        let process = command.spawn()?;
        until("the socket", || socket.exists()).await?;
        let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", socket.display()))?
            .initial_stream_window_size(1024 * 1024)
            .initial_connection_window_size(1024 * 1024);
        let mut client = None;
        let deadline = deadline();
        while client.is_none() {
            client = endpoint.connect().await.ok();
            if Instant::now() > deadline {
                return Err("the guest does not answer".into());
            }
            tokio::task::yield_now().await;
        }
        let client = GuestClient::new(client.ok_or("no connection")?);
        Ok(Self { client, directory, process })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The pids of its children, dead ones that it has not reaped included.
    pub(crate) fn children(&self) -> Vec<u32> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == self.pid())).collect()
    }

    /// A line of the guest's status, in KiB.
    pub(crate) fn memory(&self, line: &str) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let value = status.lines().find_map(|found| found.strip_prefix(line)).ok_or("no such line")?;
        Ok(value.trim().trim_end_matches(" kB").parse()?)
    }

    /// KiB that no other guest could share: without relocations of the program's own file, which sandboxes have in common
    /// because they are forked.
    pub(crate) fn own_memory(&self) -> Outcome<u64> {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.pid()))?;
        let (mut own, mut of_file) = (0, false);
        for line in maps.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["Anonymous:", size, "kB"] if !of_file => own += size.parse::<u64>()?,
                [range, _, _, _, _, rest @ ..] if range.contains('-') => {
                    of_file = rest.first().is_some_and(|place| place.starts_with('/'));
                }
                _ => {}
            }
        }
        Ok(own)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn text_path(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A request for a shell script that runs in the test's directory.
    pub(crate) fn script(&self, id: &str, script: &str) -> StartRequest {
        StartRequest {
            process_id: id.into(),
            argv: vec!["sh".into(), "-c".into(), script.into()],
            cwd: self.directory.path().display().to_string(),
            ..StartRequest::default()
        }
    }

    /// Like `script`, with a terminal.
    pub(crate) fn terminal(&self, id: &str, script: &str) -> StartRequest {
        StartRequest { terminal: Some(TerminalSize { cols: 91, rows: 33 }), ..self.script(id, script) }
    }

    pub(crate) async fn write(&self, request: WriteInputRequest) -> Result<u64, Status> {
        let request = WriteInputRequest { process_id: "p".into(), ..request };
        self.client.clone().write_input(request).await.map(|reply| reply.into_inner().offset)
    }

    /// As somebody without a name.
    pub(crate) async fn keys(&self, keys: &[u8]) -> Result<u64, Status> {
        self.write(WriteInputRequest { data: Bytes::copy_from_slice(keys), ..WriteInputRequest::default() }).await
    }

    pub(crate) async fn look(&self) -> Result<LookReply, Status> {
        self.client.clone().look(LookRequest { process_id: "p".into() }).await.map(tonic::Response::into_inner)
    }

    /// Stands still, while what it runs goes on, until told otherwise.
    pub(crate) fn freeze(&self, frozen: bool) -> Outcome {
        let pid = Pid::from_raw(self.pid().try_into()?).ok_or("no pid")?;
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    pub(crate) async fn run(&self, request: StartRequest) -> Outcome<Ended> {
        let id = request.process_id.clone();
        self.client.clone().start(request).await?;
        let mut follower = self.follow(&id, 0).await?;
        follower.until_end().await
    }

    pub(crate) async fn follow(&self, id: &str, offset: u64) -> Outcome<Follower> {
        Follower::open(self.client.clone(), id, offset).await
    }

    /// A connection of its own, which ends when it is dropped.
    pub(crate) async fn connect(&self) -> Outcome<GuestClient<Channel>> {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", self.text_path("guest.sock")))?;
        Ok(GuestClient::new(endpoint.connect().await?))
    }

    pub(crate) async fn status(&self, id: &str) -> Outcome<Option<ProcessStatus>> {
        let list = self.client.clone().list(ListRequest {}).await?.into_inner();
        Ok(list.processes.into_iter().find(|process| process.process_id == id))
    }

    pub(crate) async fn signal(&self, id: &str, signal: i32) -> Result<(), Status> {
        self.client.clone().signal(SignalRequest { process_id: id.into(), signal }).await.map(|_| ())
    }
}

/// What a follower has seen.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: Option<Exit>,
    pub(crate) offset: u64,
}

impl Ended {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.exit.map(|exit| exit.code)
    }
}

pub(crate) struct Follower {
    pub(crate) acknowledge: mpsc::Sender<FollowRequest>,
    pub(crate) events: Streaming<FollowEvent>,
    pub(crate) ended: Ended,
}

impl Follower {
    pub(crate) async fn open(mut client: GuestClient<Channel>, id: &str, offset: u64) -> Outcome<Self> {
        let (acknowledge, requests) = mpsc::channel(16);
        let from = FollowFrom { process_id: id.into(), offset };
        acknowledge.send(FollowRequest { message: Some(Message::From(from)) }).await?;
        let events = client.follow(ReceiverStream::new(requests)).await?.into_inner();
        Ok(Self { acknowledge, events, ended: Ended { offset, ..Ended::default() } })
    }

    /// Takes one event, checking that output comes without gap or repeat and that there is one exit.
    pub(crate) async fn step(&mut self) -> Outcome<bool> {
        let Some(event) = self.events.message().await? else { return Ok(false) };
        match event.event.ok_or("an empty event")? {
            Event::Output(output) => {
                assert_eq!(output.offset, self.ended.offset, "a gap or a repeat");
                assert!(!output.data.is_empty() && output.data.len() <= 64 * 1024 && output.at_ms > 0);
                self.ended.offset += output.data.len() as u64;
                match output.stream() {
                    Stream::Stdout => self.ended.stdout.extend_from_slice(&output.data),
                    Stream::Stderr => self.ended.stderr.extend_from_slice(&output.data),
                }
            }
            Event::Exit(exit) => {
                assert!(self.ended.exit.is_none(), "a second exit");
                self.ended.exit = Some(exit);
            }
        }
        Ok(true)
    }

    pub(crate) async fn confirm(&self, offset: u64) -> Outcome {
        self.acknowledge.send(FollowRequest { message: Some(Message::Acknowledge(offset)) }).await?;
        Ok(())
    }

    pub(crate) async fn until_end(&mut self) -> Outcome<Ended> {
        while self.step().await? {
            // The stream may have ended meanwhile, which the next step tells.
            let _ = self.confirm(self.ended.offset).await;
        }
        Ok(std::mem::take(&mut self.ended))
    }

    pub(crate) async fn until_text(&mut self, wanted: &str) -> Outcome {
        while !self.ended.text().contains(wanted) {
            if !self.step().await? {
                return Err(format!("`{wanted}` never came, only {:?}", self.ended.text()).into());
            }
        }
        Ok(())
    }

    pub(crate) async fn until_exit(&mut self) -> Outcome<Exit> {
        loop {
            if let Some(exit) = self.ended.exit {
                return Ok(exit);
            }
            if !self.step().await? {
                return Err("the stream ended without an exit".into());
            }
        }
    }
}

/// Says by name what this host cannot run.
pub(crate) fn not_run(name: &str, why: &str) -> Outcome {
    sandbar_test_harness::not_run(name, why);
    Ok(())
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(300)
}

/// Polls a condition; fails loudly instead of hoping for a pause to be long enough.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) -> Outcome {
    let deadline = deadline();
    while !condition() {
        if Instant::now() > deadline {
            return Err(format!("waited too long for {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

pub(crate) fn code(status: &Status) -> &str {
    status.metadata().get(CODE_KEY).and_then(|code| code.to_str().ok()).unwrap_or("none")
}

pub(crate) fn code_of<T>(answer: Result<T, Status>) -> String {
    answer.map_or_else(|status| code(&status).to_owned(), |_| "ok".to_owned())
}

/// A pid that a script wrote to a file, once it is complete.
pub(crate) async fn pid_in(path: &Path) -> Outcome<u32> {
    until("a pid file", || told_pid(path).is_some()).await?;
    told_pid(path).ok_or_else(|| "the pid file is gone".into())
}

/// The same, if it is complete by now.
pub(crate) fn told_pid(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.strip_suffix('\n')?.trim().parse().ok()
}

/// The state letter and parent of a living process.
pub(crate) fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}
