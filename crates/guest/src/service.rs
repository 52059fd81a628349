//! The gRPC surface of the guest: turns messages into calls and back, and decides nothing.

use std::{net::Ipv4Addr, os::fd::OwnedFd, path::PathBuf, pin::Pin, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    accept::{self, Door},
    children::Forker,
    command, dial,
    error::{Code, Fault},
    files::Job,
    follow, hosts,
    identity::Identity,
    input, probe,
    process::Order,
    protocol::{self as wire, guest_server::Guest},
    runtimes::Runtimes,
    search, sys,
    table::Table,
    trust,
    worker::{self, Frame, Receiver, Worker},
};

pub(crate) struct Service {
    pub(crate) identity: Arc<Identity>,
    pub(crate) version: String,
    pub(crate) boot_id: String,
    pub(crate) table: Arc<Table>,
    pub(crate) forker: Forker,
    pub(crate) runtimes: Arc<Runtimes>,
    pub(crate) searches: Arc<Semaphore>,
    pub(crate) trust: Option<OwnedFd>,
    /// The port of the way out.
    pub(crate) gate: Option<u16>,
    /// And the way out itself, where the guest accepts.
    pub(crate) door: Option<Arc<Door>>,
}

pub(crate) type Answer<T> = Result<Response<T>, Status>;
pub(crate) type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Guest for Service {
    async fn hello(&self, _: Request<wire::HelloRequest>) -> Answer<wire::HelloReply> {
        Ok(Response::new(wire::HelloReply {
            protocol: wire::VERSION,
            version: self.version.clone(),
            sandbox_id: self.identity.sandbox_id().to_owned(),
            boot_id: self.boot_id.clone(),
            awaited: u32::try_from(self.runtimes.awaited()).unwrap_or(u32::MAX),
        }))
    }

    async fn start(&self, request: Request<wire::StartRequest>) -> Answer<wire::StartReply> {
        self.table.start(request.into_inner()).await?;
        Ok(Response::new(wire::StartReply {}))
    }

    async fn list(&self, _: Request<wire::ListRequest>) -> Answer<wire::ListReply> {
        Ok(Response::new(wire::ListReply { processes: self.table.list() }))
    }

    type FollowStream = follow::Events;

    async fn follow(&self, request: Request<Streaming<wire::FollowRequest>>) -> Answer<Self::FollowStream> {
        Ok(Response::new(follow::events(Arc::clone(&self.table), request.into_inner())))
    }

    async fn write_input(&self, request: Request<wire::WriteInputRequest>) -> Answer<wire::WriteInputReply> {
        let request = request.into_inner();
        let process = self.table.get(&request.process_id)?;
        Ok(Response::new(wire::WriteInputReply { offset: input::write(&process, request).await? }))
    }

    async fn probe(&self, request: Request<wire::ProbeRequest>) -> Answer<wire::ProbeReply> {
        Ok(Response::new(probe::ask(&self.forker, request.into_inner()).await?))
    }

    async fn rename(&self, request: Request<wire::RenameRequest>) -> Answer<wire::RenameReply> {
        let wire::RenameRequest { hostname } = request.into_inner();
        rustix::system::sethostname(hostname.as_bytes())
            .map_err(|errno| Fault::internal("set the host name")(errno.into()))?;
        // A name that is not found there is no reason to go without one.
        hosts::name_host(&hostname).ok();
        Ok(Response::new(wire::RenameReply {}))
    }

    async fn trust(&self, request: Request<wire::TrustRequest>) -> Answer<wire::TrustReply> {
        let wire::TrustRequest { authority, bundle } = request.into_inner();
        let Some(directory) = &self.trust else {
            return Err(Fault::new(Code::Internal, "This sandbox has no place for certificates.").into());
        };
        // Once there is a bundle it has to follow the authority.
        let bundle = bundle || trust::is_bundled(directory);
        let system = if bundle { Some(trust::system(&self.forker).await) } else { None };
        trust::install(directory, &authority, system.as_deref()).map_err(Fault::internal("write the certificates"))?;
        Ok(Response::new(wire::TrustReply {}))
    }

    async fn relieve(&self, request: Request<wire::RelieveRequest>) -> Answer<wire::RelieveReply> {
        let reason = match wire::ExitReason::try_from(request.into_inner().reason) {
            Ok(wire::ExitReason::ByItself) | Err(_) => {
                return Err(Fault::new(Code::BadRequest, "Nothing is killed without a reason.").into());
            }
            Ok(reason) => reason,
        };
        let mut minded = self.table.minded();
        minded.extend(self.runtimes.minded());
        Ok(Response::new(wire::RelieveReply { process_id: Table::relieve(minded, reason).await? }))
    }

    async fn signal(&self, request: Request<wire::SignalRequest>) -> Answer<wire::SignalReply> {
        let wire::SignalRequest { process_id, signal } = request.into_inner();
        match signal {
            libc::SIGKILL => self.table.killable(&process_id)?.kill(wire::ExitReason::Killed).await?,
            1..=sys::LAST_SIGNAL => {
                self.table.get(&process_id)?.order(|reply| Order::Signal(signal, reply)).await?;
            }
            _ => return Err(Fault::new(Code::BadRequest, format!("There is no signal {signal}.")).into()),
        }
        Ok(Response::new(wire::SignalReply {}))
    }

    async fn resize(&self, request: Request<wire::ResizeRequest>) -> Answer<wire::ResizeReply> {
        let wire::ResizeRequest { process_id, size } = request.into_inner();
        let size = command::terminal_size(&size.unwrap_or_default())?;
        let offset = self.table.get(&process_id)?.order(|reply| Order::Resize(size, reply)).await?;
        Ok(Response::new(wire::ResizeReply { offset: Some(offset) }))
    }

    async fn look(&self, request: Request<wire::LookRequest>) -> Answer<wire::LookReply> {
        let process = self.table.get(&request.into_inner().process_id)?;
        process.demand_terminal()?;
        Ok(Response::new(process.order(Order::Look).await?))
    }

    async fn stage_answer(&self, request: Request<wire::StageAnswerRequest>) -> Answer<wire::AnswerReply> {
        let request = request.into_inner();
        let process = self.table.get(&request.process_id)?;
        answered(input::stage(&process, request).await?)
    }

    async fn release_answer(&self, request: Request<wire::ReleaseAnswerRequest>) -> Answer<wire::AnswerReply> {
        let wire::ReleaseAnswerRequest { process_id, answer_id } = request.into_inner();
        let process = self.table.get(&process_id)?;
        answered(input::release(&process, answer_id).await?)
    }

    async fn forget(&self, request: Request<wire::ForgetRequest>) -> Answer<wire::ForgetReply> {
        self.table.forget(&request.into_inner().process_id)?;
        Ok(Response::new(wire::ForgetReply {}))
    }

    async fn stat(&self, request: Request<wire::StatRequest>) -> Answer<wire::Entry> {
        let path = worker::path(request.into_inner().path)?;
        let mut worker = self.work(Job::Stat { path }).await?;
        match worker.receiver.next().await? {
            Frame::Entry(entry) => Ok(Response::new(entry)),
            Frame::Data(_) | Frame::Found(_) | Frame::Done(_) => {
                Err(Fault::new(Code::Internal, "The file worker told nothing.").into())
            }
        }
    }

    type ListDirectoryStream = Items<wire::Entry>;

    async fn list_directory(&self, request: Request<wire::ListDirectoryRequest>) -> Answer<Self::ListDirectoryStream> {
        let path = worker::path(request.into_inner().path)?;
        let worker = self.work(Job::List { path }).await?;
        items(worker.receiver, |frame| match frame {
            Frame::Entry(entry) => Some(entry),
            Frame::Data(_) | Frame::Found(_) | Frame::Done(_) => None,
        })
        .await
    }

    type ReadFileStream = Items<wire::FileData>;

    async fn read_file(&self, request: Request<wire::ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let wire::ReadFileRequest { path, offset, length } = request.into_inner();
        let path = worker::path(path)?;
        let worker = self.work(Job::Read { path, offset, length }).await?;
        items(worker.receiver, file_data).await
    }

    async fn write_file(&self, request: Request<Streaming<wire::WriteFileRequest>>) -> Answer<wire::WriteFileReply> {
        use wire::write_file_request::Message;
        let mut requests = request.into_inner();
        let Some(Message::Open(open)) = requests.message().await?.and_then(|first| first.message) else {
            return Err(not_opened());
        };
        let job = Job::Write { path: worker::path(open.path)?, mode: open.mode };
        let worker = self.work(job).await?;
        let size = upload(worker, requests, |request| match request.message {
            Some(Message::Data(data)) => Upload::Data(data),
            Some(Message::Commit(true)) => Upload::Commit,
            _ => Upload::Nonsense,
        })
        .await?;
        Ok(Response::new(wire::WriteFileReply { size }))
    }

    async fn remove(&self, request: Request<wire::RemoveRequest>) -> Answer<wire::RemoveReply> {
        let wire::RemoveRequest { path, recursive } = request.into_inner();
        let path = worker::path(path)?;
        self.work(Job::Remove { path, recursive }).await?.receiver.done().await?;
        Ok(Response::new(wire::RemoveReply {}))
    }

    type PackStream = Items<wire::FileData>;

    async fn pack(&self, request: Request<wire::PackRequest>) -> Answer<Self::PackStream> {
        let path = worker::path(request.into_inner().path)?;
        let worker = self.work(Job::Pack { path }).await?;
        items(worker.receiver, file_data).await
    }

    async fn unpack(&self, request: Request<Streaming<wire::UnpackRequest>>) -> Answer<wire::UnpackReply> {
        use wire::unpack_request::Message;
        let mut requests = request.into_inner();
        let Some(Message::Open(open)) = requests.message().await?.and_then(|first| first.message) else {
            return Err(not_opened());
        };
        let path: PathBuf = worker::path(open.path)?;
        let worker = self.work(Job::Unpack { path }).await?;
        let entries = upload(worker, requests, |request| match request.message {
            Some(Message::Data(data)) => Upload::Data(data),
            Some(Message::Commit(true)) => Upload::Commit,
            _ => Upload::Nonsense,
        })
        .await?;
        Ok(Response::new(wire::UnpackReply { entries }))
    }

    type SearchStream = Items<wire::SearchReply>;

    async fn search(&self, request: Request<wire::SearchRequest>) -> Answer<Self::SearchStream> {
        search::replies(&self.forker, &self.searches, request.into_inner()).await
    }

    async fn serve(&self, request: Request<wire::ServeRequest>) -> Answer<wire::ServeReply> {
        self.runtimes.serve(request.into_inner(), &self.table, &self.forker, self.gate, Ipv4Addr::LOCALHOST.into())?;
        Ok(Response::new(wire::ServeReply {}))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Answer<wire::DrainReply> {
        self.runtimes.drain().await;
        Ok(Response::new(wire::DrainReply {}))
    }

    type HoldStream = Items<wire::HoldReply>;

    async fn hold(&self, _: Request<wire::HoldRequest>) -> Answer<Self::HoldStream> {
        let held = self.runtimes.hold().await?;
        Ok(Response::new(Box::pin(stream::once(async move {
            let _held = held;
            std::future::pending().await
        }))))
    }

    type DialStream = Items<wire::DialReply>;

    async fn dial(&self, request: Request<Streaming<wire::DialRequest>>) -> Answer<Self::DialStream> {
        Ok(Response::new(Box::pin(dial::open(request.into_inner(), self.gate).await?)))
    }

    async fn bind(&self, request: Request<wire::BindRequest>) -> Answer<wire::BindReply> {
        self.identity.bind(request.into_inner().sandbox_id)?;
        Ok(Response::new(wire::BindReply {}))
    }

    type AcceptStream = Items<wire::DialReply>;

    async fn accept(&self, request: Request<Streaming<wire::DialRequest>>) -> Answer<Self::AcceptStream> {
        let Some(door) = &self.door else {
            let message = "Connections to the gate of this sandbox are not accepted by its guest.";
            return Err(Fault::new(Code::WrongState, message).into());
        };
        Ok(Response::new(Box::pin(accept::next(Arc::clone(door), request.into_inner()))))
    }
}

impl Service {
    async fn work(&self, job: Job) -> Result<Worker, Fault> {
        Worker::start(&self.forker, job).await
    }
}

fn answered(outcome: wire::AnswerOutcome) -> Answer<wire::AnswerReply> {
    Ok(Response::new(wire::AnswerReply { outcome: outcome.into() }))
}

fn not_opened() -> Status {
    Fault::new(Code::BadRequest, "The first message must say what to write.").into()
}

fn file_data(frame: Frame) -> Option<wire::FileData> {
    match frame {
        Frame::Entry(entry) => Some(wire::FileData { entry: Some(entry), data: Bytes::new() }),
        Frame::Data(data) => Some(wire::FileData { entry: None, data }),
        Frame::Found(_) | Frame::Done(_) => None,
    }
}

/// A worker's frames up to its last one, for which `item` gives nothing. Waits for the first, so that what cannot be
/// done at all is the call's own error.
pub(crate) async fn items<T: Send + 'static>(mut receiver: Receiver, item: fn(Frame) -> Option<T>) -> Answer<Items<T>> {
    let first = item(receiver.next().await?);
    let stream = stream::unfold(Some((receiver, first)), move |state| async move {
        let (mut receiver, ready) = state?;
        let ready = ready?;
        match receiver.next().await {
            Ok(frame) => Some((vec![Ok(ready)], Some((receiver, item(frame))))),
            Err(fault) => Some((vec![Ok(ready), Err(fault.into())], None)),
        }
    });
    Ok(Response::new(Box::pin(futures_util::StreamExt::flat_map(stream, stream::iter))))
}

enum Upload {
    Data(Bytes),
    Commit,
    Nonsense,
}

/// Moves an upload to its worker until that has answered, which may be before the upload is over.
async fn upload<T>(worker: Worker, mut requests: Streaming<T>, read: fn(T) -> Upload) -> Result<u64, Status> {
    let Worker { mut sender, mut receiver } = worker;
    let feed = async move {
        while let Some(request) = requests.message().await? {
            let sent = match read(request) {
                Upload::Data(data) => sender.data(data).await,
                Upload::Commit => {
                    let sent = sender.commit().await;
                    // Keeps the pipe: closing it first would look like an upload that broke off.
                    return Ok(Some((sent, sender)));
                }
                Upload::Nonsense => {
                    return Err(Fault::new(Code::BadRequest, "After the first message only data are expected.").into());
                }
            };
            if sent.is_err() {
                break;
            }
        }
        // Without a commit the worker undoes its work when its pipe ends, which happens here.
        Ok::<_, Status>(None)
    };
    tokio::pin!(feed);
    tokio::select! {
        biased;
        answer = receiver.done() => Ok(answer?),
        fed = &mut feed => {
            let _sender = fed?;
            Ok(receiver.done().await?)
        }
    }
}
