//! The service `Terminals`: attaching, with the same meaning as over a WebSocket.
//!
//! Eyes and hands of a viewer are served side by side by one task: a viewer that does not read still types, and a program
//! that does not read still shows. Nothing is collected for either.

use std::time::Duration;

use sandbar_api::{Code, Problem, ViewerFrame};
use sandbar_engine::{AttachAsk, Attached, Keyboard, Viewed, Viewer};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Answers, Desk, caller,
    convert::{control, known, size, viewed},
    proto::{AttachEvent, AttachRequest, attach_request::Message, terminals_server::Terminals},
    status,
};
use crate::problem::bad_request;

/// The largest piece of input.
const MOST: usize = 64 * 1024;
/// For a viewer that does not read, to be told why it ends.
const GOODBYE: Duration = Duration::from_secs(1);

type Events = mpsc::Sender<Result<AttachEvent, Status>>;

#[tonic::async_trait]
impl Terminals for Desk {
    type AttachStream = Answers<AttachEvent>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        let caller = caller(&request)?;
        let mut said = request.into_inner();
        let Some(Message::Open(open)) = said.message().await.map_err(status::unread)?.and_then(|first| first.message)
        else {
            return Err(status::of(bad_request("The first message is not `open`.", "Say which terminal, in `open`.")));
        };
        let wanted = AttachAsk {
            from: open.from_offset,
            raw: open.raw,
            control: control(known(open.control, "control")?),
            size: open.size.map(size).transpose()?,
            writer: open.writer,
        };
        let attached = self.engine().attach(&caller, &open.sandbox, &open.process, wanted).await.map_err(status::of)?;
        let (events, told) = mpsc::channel(1);
        let counted = self.0.sockets.token();
        tokio::spawn(async move {
            serve(attached, said, events).await;
            drop(counted);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }
}

async fn serve(attached: Attached, mut said: Streaming<AttachRequest>, events: Events) {
    let Attached { mut viewer, mut keyboard } = attached;
    let end = tokio::select! {
        biased;
        () = events.closed() => None,
        end = show(&mut viewer, &events) => end,
        end = hear(&mut keyboard, &mut said) => Some(end),
    };
    // Others need not wait for the goodbye to be in control.
    drop((viewer, keyboard));
    if let Some(end) = end {
        let _told = timeout(GOODBYE, events.send(Err(end))).await;
    }
}

/// Sends what there is to see, one event at a time; None when that ended well, or nobody looks any more.
async fn show(viewer: &mut Viewer, events: &Events) -> Option<Status> {
    loop {
        let event = match viewer.next().await {
            Ok(Some(Viewed::Output { end, data })) => viewed::output(end, data),
            Ok(Some(Viewed::Frame(frame))) => viewed::frame(frame),
            Ok(None) => return None,
            Err(problem) => return Some(status::of(problem)),
        };
        events.send(Ok(event)).await.ok()?;
    }
}

/// Takes what the viewer says, one message at a time. One that has said all still looks on.
async fn hear(keyboard: &mut Keyboard, said: &mut Streaming<AttachRequest>) -> Status {
    loop {
        let message = match said.message().await {
            Ok(Some(said)) => said.message,
            Ok(None) => return std::future::pending().await,
            Err(status) => return status::unread(status),
        };
        match message {
            Some(Message::Input(input)) if input.data.len() > MOST => {
                let detail = format!("A message has {} bytes of input, more than {MOST}.", input.data.len());
                return status::of(Problem::new(Code::TooLarge, detail, "Send it in smaller pieces."));
            }
            Some(Message::Input(input)) => keyboard.type_input(input.offset, input.data).await,
            Some(Message::Resize(window)) => match size(window) {
                Ok(size) => keyboard.frame(ViewerFrame::Resize { cols: size.cols, rows: size.rows }).await,
                Err(status) => return status,
            },
            Some(Message::Take(_)) => keyboard.frame(ViewerFrame::Take {}).await,
            Some(Message::Release(_)) => keyboard.frame(ViewerFrame::Release {}).await,
            Some(Message::Open(_)) | None => {
                let detail = "A message is neither input nor `resize`, `take` or `release`.";
                return status::of(bad_request(detail, "Say `open` once, and then one of those."));
            }
        }
    }
}
