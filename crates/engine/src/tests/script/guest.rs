//! The guest that follows a script: processes are what tests write and how they let them end.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, stream};
use sandbar_api::SandboxId;
use sandbar_guest::protocol::*;
use tokio::sync::Notify;
use tonic::{Request, Response, Status, Streaming};

use super::{
    asking::{Fault, Tty},
    lock,
    runtimes::Runtimes,
};

/// How long a change of files takes when all is said.
const CHANGING: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(in crate::tests) struct Script(Arc<Shared>);

struct Shared {
    id: SandboxId,
    processes: Mutex<HashMap<String, Play>>,
    /// Processes that are over, but not what they started.
    left_behind: Mutex<HashSet<String>>,
    starts: Mutex<Vec<StartRequest>>,
    relieved: AtomicU64,
    runtimes: Runtimes,
    /// Calls that change files and are not done with it, and all that ever began to.
    changes: AtomicU64,
    changes_begun: AtomicU64,
    /// Lets one `held` start.
    gate: Notify,
    changed: Notify,
    /// By the name of the call.
    faults: Mutex<HashMap<&'static str, Fault>>,
    /// Calls that met one.
    refused: AtomicU64,
}

#[derive(Default, Clone)]
pub(in crate::tests) struct Play {
    pub(in crate::tests) output: Vec<u8>,
    pub(in crate::tests) exit: Option<Exit>,
    pub(in crate::tests) acknowledged: u64,
    input: u64,
    echoes: bool,
    terminal: bool,
    pub(in crate::tests) tty: Tty,
    pub(in crate::tests) hand: Hand,
}

/// What was written to its input, and how.
#[derive(Default, Clone)]
pub(in crate::tests) struct Hand {
    pub(in crate::tests) writes: Vec<WriteInputRequest>,
    writers: HashMap<String, u64>,
    answered: u64,
    /// Its program reads nothing, and no more is taken.
    pub(in crate::tests) deaf: bool,
    /// The columns it was given, in this order.
    pub(in crate::tests) widths: Vec<u32>,
    /// Whether narrow sizes are answered late.
    pub(in crate::tests) slow: bool,
    /// Instead of now, when its output is said to have come.
    pub(in crate::tests) at_ms: Option<i64>,
}

impl Hand {
    /// What of it is new, and what was taken of its writer.
    fn take(&mut self, request: &WriteInputRequest) -> Result<(Bytes, u64), Status> {
        if let Some(offset) = request.answers_output {
            let new = offset > self.answered;
            self.answered = self.answered.max(offset);
            return Ok((if new { request.data.clone() } else { Bytes::new() }, 0));
        }
        let taken = self.writers.entry(request.writer.clone()).or_default();
        let offset = request.offset.unwrap_or(*taken);
        if offset > *taken {
            return Err(refuse("offset_beyond"));
        }
        let known = usize::try_from(*taken - offset).unwrap_or(usize::MAX).min(request.data.len());
        let new = request.data.slice(known..);
        *taken += new.len() as u64;
        Ok((new, *taken))
    }
}

impl Script {
    pub(super) fn of(id: &SandboxId) -> Self {
        Self(Arc::new(Shared {
            id: id.clone(),
            processes: Mutex::default(),
            left_behind: Mutex::default(),
            starts: Mutex::default(),
            relieved: AtomicU64::new(0),
            runtimes: Runtimes::default(),
            changes: AtomicU64::new(0),
            changes_begun: AtomicU64::new(0),
            gate: Notify::new(),
            changed: Notify::new(),
            faults: Mutex::default(),
            refused: AtomicU64::new(0),
        }))
    }

    fn at_terminal<T>(&self, process: &str, work: impl FnOnce(&mut Play) -> T) -> Result<T, Status> {
        let mut processes = lock(&self.0.processes);
        let play = processes.get_mut(process).ok_or_else(|| refuse("unknown_process"))?;
        match play.exit {
            Some(_) => Err(refuse("process_over")),
            None => Ok(work(play)),
        }
    }

    pub(super) fn runtimes(&self) -> &Runtimes {
        &self.0.runtimes
    }

    pub(super) fn faults(&self) -> &Mutex<HashMap<&'static str, Fault>> {
        &self.0.faults
    }

    pub(super) fn refusals(&self) -> &AtomicU64 {
        &self.0.refused
    }

    pub(in crate::tests) fn play(&self, process: &str) -> Option<Play> {
        lock(&self.0.processes).get(process).cloned()
    }

    pub(in crate::tests) fn change(&self, process: &str, change: impl FnOnce(&mut Play)) {
        change(lock(&self.0.processes).entry(process.to_owned()).or_default());
        self.0.changed.notify_waiters();
    }

    pub(in crate::tests) fn leave_behind(&self, process: &str) {
        lock(&self.0.left_behind).insert(process.to_owned());
    }

    pub(in crate::tests) fn last_start(&self) -> Option<StartRequest> {
        lock(&self.0.starts).last().cloned()
    }

    /// How often it was asked for relief.
    pub(in crate::tests) fn relieved(&self) -> u64 {
        self.0.relieved.load(Ordering::Relaxed)
    }

    /// How many calls are changing files now.
    pub(in crate::tests) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::SeqCst)
    }

    /// How many calls ever began to.
    pub(in crate::tests) fn changes_begun(&self) -> u64 {
        self.0.changes_begun.load(Ordering::SeqCst)
    }

    pub(in crate::tests) fn let_start(&self) {
        self.0.gate.notify_one();
    }

    /// A worker like a real one: it does not end with whoever asked for it, but when it has put things right.
    async fn change_files<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Status> {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        self.0.changes_begun.fetch_add(1, Ordering::SeqCst);
        let script = self.clone();
        let worker = tokio::spawn(async move {
            let worked = work.await;
            tokio::time::sleep(CHANGING).await;
            script.0.changes.fetch_sub(1, Ordering::SeqCst);
            worked
        });
        worker.await.map_err(|error| Status::internal(error.to_string()))
    }

    fn deliver(&self, process: &str, signal: i32) -> Result<(), Status> {
        if signal == 9 && lock(&self.0.left_behind).remove(process) {
            return Ok(());
        }
        self.play(process).filter(|play| play.exit.is_none()).ok_or_else(|| refuse("process_over"))?;
        self.change(process, |play| play.exit = exit(128 + signal, signal, ExitReason::Killed));
        Ok(())
    }

    pub(in crate::tests) fn write(&self, process: &str, data: &[u8]) {
        self.change(process, |play| play.output.extend_from_slice(data));
    }
}

pub(in crate::tests) fn exit(code: i32, signal: i32, reason: ExitReason) -> Option<Exit> {
    Some(Exit { code, signal, reason: reason.into(), at_ms: chrono::Utc::now().timestamp_millis() })
}

/// As if the guest had never known it.
pub(in crate::tests) fn forget(script: &Script, process: &str) {
    lock(&script.0.processes).remove(process);
}

pub(super) fn refuse(code: &str) -> Status {
    let mut status = Status::failed_precondition(format!("The script says {code}."));
    if let Ok(value) = code.parse() {
        status.metadata_mut().insert(CODE_KEY, value);
    }
    status
}

pub(super) type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl guest_server::Guest for Script {
    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeReply> {
        Err(Status::unimplemented("probe"))
    }

    async fn rename(&self, _: Request<RenameRequest>) -> Answer<RenameReply> {
        Ok(Response::new(RenameReply {}))
    }

    async fn trust(&self, _: Request<TrustRequest>) -> Answer<TrustReply> {
        Ok(Response::new(TrustReply {}))
    }

    async fn relieve(&self, request: Request<RelieveRequest>) -> Answer<RelieveReply> {
        self.0.relieved.fetch_add(1, Ordering::Relaxed);
        let culprit = lock(&self.0.processes).iter().find(|(_, play)| play.exit.is_none()).map(|(id, _)| id.clone());
        if let Some(id) = &culprit {
            self.change(id, |play| play.exit = exit(137, 9, request.get_ref().reason()));
        }
        Ok(Response::new(RelieveReply { process_id: culprit.unwrap_or_default() }))
    }

    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        let sandbox_id = self.0.id.to_string();
        let awaited = self.0.runtimes.awaited();
        Ok(Response::new(HelloReply { protocol: VERSION, sandbox_id, awaited, ..HelloReply::default() }))
    }

    /// `echo TEXT` writes and exits, `cat` repeats its input, `die CODE` exits, `sleep` waits for a signal, `slow` also takes its time to start, `held` starts when it is let, all else is not found.
    async fn start(&self, request: Request<StartRequest>) -> Answer<StartReply> {
        let request = request.into_inner();
        lock(&self.0.starts).push(request.clone());
        let fault = lock(&self.0.faults).get("start").copied();
        if fault == Some(Fault::Unreachable) {
            std::future::pending::<()>().await;
        }
        let words: Vec<&str> = request.argv.iter().map(String::as_str).collect();
        let mut play = Play { terminal: request.terminal.is_some(), ..Play::default() };
        match words.as_slice() {
            ["echo", text] => (play.output, play.exit) = (text.as_bytes().to_vec(), exit(0, 0, ExitReason::ByItself)),
            ["cat"] => play.echoes = true,
            ["sleep"] => {}
            ["die", code] => play.exit = exit(code.parse().unwrap_or(1), 0, ExitReason::ByItself),
            ["held"] => self.0.gate.notified().await,
            ["slow"] => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => return Err(refuse("command_not_found")),
        }
        self.change(&request.process_id, |slot| *slot = play);
        match fault {
            Some(_) => Err(Status::unavailable("the script does not say")),
            None => Ok(Response::new(StartReply {})),
        }
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
                        let at_ms = play.hand.at_ms.unwrap_or_else(|| chrono::Utc::now().timestamp_millis());
                        let output = Output { offset: offset as u64, stream: 0, at_ms, data };
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
        loop {
            let changed = self.0.changed.notified();
            match self.play(&request.process_id) {
                Some(play) if play.hand.deaf => changed.await,
                _ => break,
            }
        }
        let mut reply = Err(refuse("unknown_process"));
        self.change(&request.process_id, |play| {
            reply = play.hand.take(&request).map(|(new, taken)| {
                if request.answers_output.is_none() {
                    play.input += new.len() as u64;
                    play.take(&new);
                }
                if play.echoes {
                    play.output.extend_from_slice(&new);
                }
                if request.eof {
                    play.exit = exit(0, 0, ExitReason::ByItself);
                }
                if request.writer.is_empty() { play.input } else { taken }
            });
            play.hand.writes.push(request.clone());
        });
        Ok(Response::new(WriteInputReply { offset: reply? }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Answer<SignalReply> {
        let SignalRequest { process_id, signal } = request.into_inner();
        self.works("signal", || self.deliver(&process_id, signal))??;
        Ok(Response::new(SignalReply {}))
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Answer<ForgetReply> {
        lock(&self.0.processes).remove(&request.into_inner().process_id);
        Ok(Response::new(ForgetReply {}))
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Answer<ResizeReply> {
        let ResizeRequest { process_id, size } = request.into_inner();
        let play = self.play(&process_id).filter(|play| play.terminal).ok_or_else(|| refuse("no_terminal"))?;
        let width = size.map_or(0, |size| size.cols);
        self.change(&process_id, |play| play.hand.widths.push(width));
        if play.hand.slow {
            tokio::time::sleep(Duration::from_millis(100_u64.saturating_sub(width.into()))).await;
        }
        Ok(Response::new(ResizeReply { offset: Some(play.output.len() as u64) }))
    }

    async fn look(&self, request: Request<LookRequest>) -> Answer<LookReply> {
        let look = self.works("look", || self.at_terminal(&request.get_ref().process_id, Play::look))??;
        Ok(Response::new(look))
    }

    async fn stage_answer(&self, request: Request<StageAnswerRequest>) -> Answer<AnswerReply> {
        let request = request.into_inner();
        let id = request.process_id.clone();
        let outcome = self.works("stage", || self.at_terminal(&id, |play| play.stage(request)))??;
        Ok(Response::new(AnswerReply { outcome: outcome.into() }))
    }

    async fn release_answer(&self, request: Request<ReleaseAnswerRequest>) -> Answer<AnswerReply> {
        let ReleaseAnswerRequest { process_id, answer_id } = request.into_inner();
        // What was typed is known also after the end, until it is forgotten.
        let known = self.play(&process_id).and_then(|play| play.outcome(&answer_id));
        let outcome = self.works("release", || match known {
            Some(known) => Ok(known),
            None => self.at_terminal(&process_id, |play| play.release(&answer_id)),
        })??;
        Ok(Response::new(AnswerReply { outcome: outcome.into() }))
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

    /// Takes what is written to `upload`; refuses all else, before the body has ended.
    async fn write_file(&self, request: Request<Streaming<WriteFileRequest>>) -> Answer<WriteFileReply> {
        use write_file_request::Message;
        let mut requests = request.into_inner();
        match requests.message().await?.and_then(|first| first.message) {
            Some(Message::Open(open)) if open.path.ends_with("/upload") => {}
            _ => return Err(refuse("disk_full")),
        }
        let worked = self.change_files(async move {
            let (mut size, mut committed) = (0, false);
            while let Ok(Some(request)) = requests.message().await {
                match request.message {
                    Some(Message::Data(data)) => size += data.len() as u64,
                    _ => committed = true,
                }
            }
            committed.then_some(size)
        });
        let size = worked.await?.ok_or_else(|| refuse("bad_request"))?;
        Ok(Response::new(WriteFileReply { size }))
    }

    /// There is nothing but `upload`.
    async fn remove(&self, request: Request<RemoveRequest>) -> Answer<RemoveReply> {
        if !request.get_ref().path.ends_with("/upload") {
            return Err(refuse("unknown_file"));
        }
        self.change_files(async {}).await?;
        Ok(Response::new(RemoveReply {}))
    }

    type PackStream = Boxed<FileData>;
    async fn pack(&self, _: Request<PackRequest>) -> Answer<Self::PackStream> {
        Err(refuse("unknown_file"))
    }

    async fn unpack(&self, _: Request<Streaming<UnpackRequest>>) -> Answer<UnpackReply> {
        Err(refuse("bad_archive"))
    }

    type SearchStream = Boxed<SearchReply>;
    async fn search(&self, request: Request<SearchRequest>) -> Answer<Self::SearchStream> {
        Ok(Response::new(super::search::replies(request.into_inner())?))
    }

    async fn serve(&self, request: Request<ServeRequest>) -> Answer<ServeReply> {
        self.0.runtimes.serve(request.into_inner())?;
        Ok(Response::new(ServeReply {}))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Answer<DrainReply> {
        self.0.runtimes.drain();
        Ok(Response::new(DrainReply {}))
    }

    type HoldStream = Boxed<HoldReply>;
    async fn hold(&self, _: Request<HoldRequest>) -> Answer<Self::HoldStream> {
        Ok(Response::new(self.0.runtimes.hold().await?))
    }

    type DialStream = Boxed<DialReply>;
    async fn dial(&self, request: Request<Streaming<DialRequest>>) -> Answer<Self::DialStream> {
        Ok(Response::new(super::dial::open(request.into_inner()).await?))
    }

    async fn bind(&self, _request: Request<BindRequest>) -> Answer<BindReply> {
        Err(Status::unimplemented("the script binds nothing"))
    }

    type AcceptStream = Boxed<DialReply>;

    async fn accept(&self, _request: Request<Streaming<DialRequest>>) -> Answer<Self::AcceptStream> {
        Err(Status::unimplemented("the script has no gate"))
    }
}
