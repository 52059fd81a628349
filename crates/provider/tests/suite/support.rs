//! A guest to talk to, and lines to it that can be cut.

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd as _, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use sandbar_api::SandboxId;
use sandbar_guest::{Entrance, Gate, Setup};
use sandbar_provider::{
    Guest, Relay,
    identity::Identity,
    relay::relay,
    tls::{self, Carries, GuestKey},
};
use tokio::{
    io::DuplexStream,
    net::{TcpSocket, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const KEY: &str = "SANDBAR_TEST_SERVER_KEY";
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn is_guest() -> bool {
    std::env::var_os(KEY).is_some()
}

/// Its listeners come as standard input and output.
pub(crate) fn be_guest() -> ! {
    let key = std::env::var(KEY).unwrap_or_default();
    let key = (0..key.len()).step_by(2).filter_map(|at| u8::from_str_radix(key.get(at..at + 2)?, 16).ok()).collect();
    let inherited = || -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?))
    };
    match inherited() {
        Ok((listener, gate)) => sandbar_guest::run(Setup {
            sandbox_id: None,
            version: "0.0.0-test".into(),
            entrance: Some(Entrance::Tls { listener, server_keys: vec![key] }),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            home: "/".into(),
            user: "test".into(),
            env: BTreeMap::new(),
            confine: Box::new(unconfined),
            group: None,
            oom: None,
            gate: Some(Gate::Carried { listener: gate }),
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

fn unconfined() -> rustix::io::Result<()> {
    Ok(())
}

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32]).expect("a key pair")
}

pub(crate) fn id(number: u64) -> SandboxId {
    SandboxId::from_parts(number, [0; 10])
}

/// A guest that knows the key of the first identity.
pub(crate) struct Pod {
    entrance: TcpListener,
    gate: TcpListener,
    process: Child,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pod {
    pub(crate) fn start() -> Outcome<Self> {
        let (entrance, gate) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let process = spawn(&entrance, &gate)?;
        Ok(Self { entrance, gate, process })
    }

    /// Another guest at the same address.
    pub(crate) fn replace(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        self.process = spawn(&self.entrance, &self.gate)?;
        Ok(())
    }

    pub(crate) fn fall_silent(&self) -> Outcome {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?).ok_or("no process")?;
        Ok(rustix::process::kill_process(pid, Signal::STOP)?)
    }

    pub(crate) fn line(&self) -> Line {
        Line { address: self.entrance.local_addr().expect("an address"), open: Arc::default() }
    }

    /// As a program inside does.
    pub(crate) async fn program(&self) -> Outcome<TcpStream> {
        Ok(TcpStream::connect(self.gate.local_addr()?).await?)
    }

    /// One for which a kernel keeps hardly anything.
    pub(crate) async fn reader_of_little(&self) -> Outcome<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        Ok(socket.connect(self.gate.local_addr()?).await?)
    }

    pub(crate) async fn connect(&self) -> Outcome<(Guest, GuestKey)> {
        Ok(self.line().connect(1, Carries::Calls, None).await?)
    }

    /// Its gate, on a line of its own.
    pub(crate) async fn relay(&self) -> Outcome<(Relay, Line)> {
        let line = self.line();
        let (guest, _) = line.connect(1, Carries::Gate, None).await?;
        tls::bind(&guest, &id(1)).await?;
        Ok((relay(guest, self.gate.local_addr()?.port()), line))
    }
}

fn spawn(entrance: &TcpListener, gate: &TcpListener) -> Outcome<Child> {
    let listener = |listener: &TcpListener| listener.try_clone().map(|clone| Stdio::from(OwnedFd::from(clone)));
    let key: String = identity(1).public_key().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.env(KEY, key).stdin(listener(entrance)?).stdout(listener(gate)?).spawn()?)
}

/// A way to a guest.
#[derive(Clone)]
pub(crate) struct Line {
    address: SocketAddr,
    open: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Line {
    /// As the server with the identity of this seed.
    pub(crate) async fn connect(
        &self,
        seed: u8,
        carries: Carries,
        expected: Option<GuestKey>,
    ) -> Result<(Guest, GuestKey), tls::Error> {
        let line = self.clone();
        let dial = move || {
            let line = line.clone();
            async move { line.dial().await }
        };
        tls::connect(&identity(seed), carries, expected, dial).await
    }

    /// No socket, to show that none is needed.
    async fn dial(&self) -> io::Result<DuplexStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
        let carried = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut ours).await });
        self.open.lock().expect("a lock").push(carried.abort_handle());
        Ok(theirs)
    }

    /// Breaks the connections that are open.
    pub(crate) fn cut(&self) {
        self.open.lock().expect("a lock").iter().for_each(AbortHandle::abort);
    }

    pub(crate) fn dialled(&self) -> usize {
        self.open.lock().expect("a lock").len()
    }
}

/// Waits for what has to come soon.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Outcome<T> {
    timeout(PATIENCE, future).await.map_err(|_| format!("not in time: {what}").into())
}

/// Asks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Outcome {
    soon(what, async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}
