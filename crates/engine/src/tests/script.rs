//! A provider whose guests follow a script instead of running commands: enough of the protocol to show what the engine
//! does with a guest that answers, dies, or outlives the engine. What real guests do is shown with real ones.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use sandbar_api::{LayerReport, SandboxId};
use sandbar_guest::protocol::{guest_server::GuestServer, *};
use sandbar_provider::{Error, Found, Guest as Client, HostReport, Provider, Spec};
use tokio::{
    net::UnixListener,
    sync::{Notify, watch},
};
use tonic::{Request, Response, Status, Streaming};

pub(super) struct Scripted {
    root: PathBuf,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    /// What the next `create` fails with.
    pub(super) broken: Mutex<Option<Error>>,
    /// What the next `destroy` does besides, such as making room.
    pub(super) destroys: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub(super) struct Sandbox {
    pub(super) guest: Script,
    running: watch::Sender<bool>,
}

impl Scripted {
    pub(super) fn new(root: PathBuf) -> Arc<Self> {
        Arc::new(Self { root, sandboxes: Mutex::default(), broken: Mutex::default(), destroys: Mutex::default() })
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        lock(&self.sandboxes).get(id).cloned()
    }

    /// The guest dies by itself.
    pub(super) fn die(&self, id: &SandboxId) {
        if let Some(sandbox) = self.get(id) {
            sandbox.running.send_replace(false);
        }
    }

    /// Listens until `running` turns false, on a thread of its own, so that its connections die with it.
    fn launch(&self, id: &SandboxId) -> std::io::Result<()> {
        let path = self.root.join(id.as_str());
        drop(std::fs::remove_file(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let (running, mut end) = watch::channel(true);
        let guest = Script(Arc::new(Shared {
            id: id.clone(),
            processes: Mutex::default(),
            left_behind: Mutex::default(),
            changed: Notify::new(),
        }));
        let sandbox = Arc::new(Sandbox { guest: guest.clone(), running });
        lock(&self.sandboxes).insert(id.clone(), sandbox);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener)?;
                tokio::select! {
                    _ = end.wait_for(|running| !*running) => {}
                    served = serve(listener, guest) => served?,
                }
                std::io::Result::Ok(())
            })
        });
        Ok(())
    }
}

async fn serve(listener: UnixListener, guest: Script) -> std::io::Result<()> {
    loop {
        let stream = TokioIo::new(listener.accept().await?.0);
        let service = TowerToHyperService::new(GuestServer::new(guest.clone()));
        tokio::spawn(async move {
            auto::Builder::new(TokioExecutor::new()).http2_only().serve_connection(stream, service).await
        });
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        HostReport { provider: "local".into(), findings: vec![] }
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        // Long enough for others to come in between.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(error) = lock(&self.broken).take() {
            return Err(error);
        }
        self.launch(&spec.id).map_err(Error::io("start the script"))
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        self.get(&spec.id).ok_or_else(|| Error::Unknown(spec.id.clone()))?;
        self.launch(&spec.id).map_err(Error::io("start the script"))
    }

    async fn inspect(&self, _: &Spec) -> Result<Vec<LayerReport>, Error> {
        Ok(vec![])
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        self.die(id);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.die(id);
        lock(&self.sandboxes).remove(id);
        if let Some(also) = lock(&self.destroys).take() {
            also();
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        let found =
            |(id, sandbox): (&SandboxId, &Arc<Sandbox>)| Found { id: id.clone(), running: *sandbox.running.borrow() };
        Ok(lock(&self.sandboxes).iter().map(found).collect())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Client, Error> {
        let address = format!("unix://{}", self.root.join(id.as_str()).display());
        let unreachable =
            |error: tonic::transport::Error| Error::Unreachable { id: id.clone(), cause: error.to_string() };
        let endpoint = tonic::transport::Endpoint::from_shared(address).map_err(unreachable)?;
        Ok(Client::new(endpoint.connect().await.map_err(unreachable)?))
    }

    async fn gone(&self, id: &SandboxId) -> Result<(), Error> {
        let sandbox = self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        drop(sandbox.running.subscribe().wait_for(|running| !*running).await);
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct Script(Arc<Shared>);

struct Shared {
    id: SandboxId,
    processes: Mutex<HashMap<String, Play>>,
    /// Processes that are over, but not what they started.
    left_behind: Mutex<HashSet<String>>,
    changed: Notify,
}

#[derive(Default, Clone)]
pub(super) struct Play {
    pub(super) output: Vec<u8>,
    pub(super) exit: Option<Exit>,
    pub(super) acknowledged: u64,
    input: u64,
    echoes: bool,
}

impl Script {
    pub(super) fn play(&self, process: &str) -> Option<Play> {
        lock(&self.0.processes).get(process).cloned()
    }

    pub(super) fn change(&self, process: &str, change: impl FnOnce(&mut Play)) {
        change(lock(&self.0.processes).entry(process.to_owned()).or_default());
        self.0.changed.notify_waiters();
    }

    pub(super) fn leave_behind(&self, process: &str) {
        lock(&self.0.left_behind).insert(process.to_owned());
    }

    pub(super) fn write(&self, process: &str, data: &[u8]) {
        self.change(process, |play| play.output.extend_from_slice(data));
    }
}

pub(super) fn exit(code: i32, signal: i32, reason: ExitReason) -> Option<Exit> {
    Some(Exit { code, signal, reason: reason.into(), at_ms: chrono::Utc::now().timestamp_millis() })
}

/// As if the guest had never known it.
pub(super) fn forget(script: &Script, process: &str) {
    lock(&script.0.processes).remove(process);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refuse(code: &str) -> Status {
    let mut status = Status::failed_precondition(format!("The script says {code}."));
    if let Ok(value) = code.parse() {
        status.metadata_mut().insert(CODE_KEY, value);
    }
    status
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl guest_server::Guest for Script {
    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeReply> {
        Err(Status::unimplemented("probe"))
    }

    async fn relieve(&self, _: Request<RelieveRequest>) -> Answer<RelieveReply> {
        Err(Status::unimplemented("relieve"))
    }

    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        let sandbox_id = self.0.id.to_string();
        Ok(Response::new(HelloReply { protocol: VERSION, version: String::new(), sandbox_id, boot_id: String::new() }))
    }

    /// `echo TEXT` writes and exits, `cat` repeats its input, `sleep` waits for a signal, all else is not found.
    async fn start(&self, request: Request<StartRequest>) -> Answer<StartReply> {
        let request = request.into_inner();
        let words: Vec<&str> = request.argv.iter().map(String::as_str).collect();
        let mut play = Play::default();
        match words.as_slice() {
            ["echo", text] => (play.output, play.exit) = (text.as_bytes().to_vec(), exit(0, 0, ExitReason::ByItself)),
            ["cat"] => play.echoes = true,
            ["sleep"] => {}
            _ => return Err(refuse("command_not_found")),
        }
        self.change(&request.process_id, |slot| *slot = play);
        Ok(Response::new(StartReply {}))
    }

    async fn list(&self, _: Request<ListRequest>) -> Answer<ListReply> {
        let status = |(id, play): (&String, &Play)| ProcessStatus {
            process_id: id.clone(),
            exit: play.exit,
            output_start: play.acknowledged,
            ..ProcessStatus::default()
        };
        Ok(Response::new(ListReply { processes: lock(&self.0.processes).iter().map(status).collect() }))
    }

    type FollowStream = Boxed<FollowEvent>;
    async fn follow(&self, request: Request<Streaming<FollowRequest>>) -> Answer<Self::FollowStream> {
        let mut requests = request.into_inner();
        let Some(FollowRequest { message: Some(follow_request::Message::From(from)) }) = requests.message().await?
        else {
            return Err(refuse("bad_request"));
        };
        let id = from.process_id;
        if self.play(&id).is_none() {
            return Err(refuse("unknown_process"));
        }
        let (script, name) = (self.clone(), id.clone());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                if let Some(follow_request::Message::Acknowledge(offset)) = request.message {
                    script.change(&name, |play| play.acknowledged = offset);
                }
            }
        });
        let script = self.clone();
        let next = move |(mut offset, told): (usize, bool)| {
            let (script, id) = (script.clone(), id.clone());
            async move {
                loop {
                    let changed = script.0.changed.notified();
                    let play = script.play(&id)?;
                    if play.output.len() > offset {
                        let data = Bytes::copy_from_slice(&play.output[offset..play.output.len().min(offset + CHUNK)]);
                        let output = Output { offset: offset as u64, stream: 0, at_ms: 0, data };
                        offset += output.data.len();
                        let event = Some(follow_event::Event::Output(output));
                        return Some((Ok(FollowEvent { event }), (offset, told)));
                    }
                    match play.exit {
                        Some(_) if told => return None,
                        Some(exit) => {
                            let event = Some(follow_event::Event::Exit(exit));
                            return Some((Ok(FollowEvent { event }), (offset, true)));
                        }
                        None => changed.await,
                    }
                }
            }
        };
        Ok(Response::new(Box::pin(stream::unfold((from.offset as usize, false), next))))
    }

    async fn write_input(&self, request: Request<WriteInputRequest>) -> Answer<WriteInputReply> {
        let request = request.into_inner();
        let mut offset = 0;
        self.change(&request.process_id, |play| {
            play.input += request.data.len() as u64;
            offset = play.input;
            if play.echoes {
                play.output.extend_from_slice(&request.data);
            }
            if request.eof {
                play.exit = exit(0, 0, ExitReason::ByItself);
            }
        });
        Ok(Response::new(WriteInputReply { offset }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Answer<SignalReply> {
        let SignalRequest { process_id, signal } = request.into_inner();
        if signal == 9 && lock(&self.0.left_behind).remove(&process_id) {
            return Ok(Response::new(SignalReply {}));
        }
        self.play(&process_id).filter(|play| play.exit.is_none()).ok_or_else(|| refuse("process_over"))?;
        self.change(&process_id, |play| play.exit = exit(128 + signal, signal, ExitReason::Killed));
        Ok(Response::new(SignalReply {}))
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Answer<ForgetReply> {
        lock(&self.0.processes).remove(&request.into_inner().process_id);
        Ok(Response::new(ForgetReply {}))
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Answer<ResizeReply> {
        Err(refuse("no_terminal"))
    }

    async fn stat(&self, _: Request<StatRequest>) -> Answer<Entry> {
        Err(refuse("unknown_file"))
    }

    type ListDirectoryStream = Boxed<Entry>;
    async fn list_directory(&self, _: Request<ListDirectoryRequest>) -> Answer<Self::ListDirectoryStream> {
        Err(refuse("unknown_file"))
    }

    type ReadFileStream = Boxed<FileData>;
    async fn read_file(&self, _: Request<ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        Err(refuse("unknown_file"))
    }

    /// Answers before the body has ended.
    async fn write_file(&self, _: Request<Streaming<WriteFileRequest>>) -> Answer<WriteFileReply> {
        Err(refuse("disk_full"))
    }

    async fn remove(&self, _: Request<RemoveRequest>) -> Answer<RemoveReply> {
        Err(refuse("unknown_file"))
    }

    type PackStream = Boxed<FileData>;
    async fn pack(&self, _: Request<PackRequest>) -> Answer<Self::PackStream> {
        Err(refuse("unknown_file"))
    }

    async fn unpack(&self, _: Request<Streaming<UnpackRequest>>) -> Answer<UnpackReply> {
        Err(refuse("bad_archive"))
    }
}
