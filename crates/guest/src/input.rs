//! The input of one process: a task that types what callers send, in order, each byte once. A caller that goes away
//! changes nothing about what was taken.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    answers::{Answer, KEYS_MAX},
    error::{Code, Fault},
    process::{Order, Process, Reply, ask},
    protocol::{AnswerOutcome, StageAnswerRequest, WriteInputRequest},
    sink::Sink,
    writers,
};

/// What waits longer than this behind input that nobody reads has lost its sense.
const MOMENT: Duration = Duration::from_millis(500);

pub(crate) enum Request {
    Feed(Feed, Reply<u64>),
    Response(Response, Reply<u64>),
    /// The answer with this id.
    Release(String, Reply<AnswerOutcome>),
}

/// A piece of input and where it belongs.
pub(crate) struct Feed {
    /// Whose bytes `offset` counts; without a name, everybody's.
    pub(crate) writer: Option<String>,
    pub(crate) offset: Option<u64>,
    pub(crate) data: Bytes,
    pub(crate) eof: bool,
}

/// What the terminal itself says when a program asks it something.
pub(crate) struct Response {
    /// The offset of the output where the question ends.
    pub(crate) question: u64,
    pub(crate) data: Bytes,
    pub(crate) by: Instant,
}

/// Returns the offset after what has been taken.
pub(crate) async fn write(process: &Process, request: WriteInputRequest) -> Result<u64, Fault> {
    let WriteInputRequest { offset, data, eof, writer, answers_output, .. } = request;
    let writer = writers::name(writer)?;
    let Some(question) = answers_output else {
        let feed = Feed { writer, offset, data, eof };
        return ask(process.input()?, |reply| Request::Feed(feed, reply)).await.unwrap_or_else(|| Err(process.over()));
    };
    if writer.is_some() || offset.is_some() || eof {
        return Err(Fault::new(Code::BadRequest, "A terminal's own answer has neither writer nor offset nor end."));
    }
    process.demand_terminal()?;
    if data.len() > KEYS_MAX {
        return Err(Fault::new(Code::TooLarge, format!("A terminal's own answer has at most {KEYS_MAX} bytes.")));
    }
    let printed = process.state().ring.end();
    if question > printed {
        let message = format!("The answer is to output before offset {question}, but the output ends at {printed}.");
        return Err(Fault::new(Code::OffsetBeyond, message));
    }
    let by = Instant::now() + MOMENT;
    let asked = ask(process.input()?, |reply| Request::Response(Response { question, data, by }, reply));
    match timeout_at(by, asked).await {
        Ok(answer) => answer.unwrap_or_else(|| Err(process.over())),
        // Behind input that nobody reads: it would come too late, so it is not typed at all.
        Err(_) => Ok(process.state().input_offset),
    }
}

pub(crate) async fn stage(process: &Process, request: StageAnswerRequest) -> Result<AnswerOutcome, Fault> {
    process.demand_terminal()?;
    let answer = Answer::parse(request)?;
    let known = process.state().answers.outcome(&answer.id);
    if matches!(known, AnswerOutcome::Typed | AnswerOutcome::MovedOn) {
        return Ok(known);
    }
    process.order(|reply| Order::Stage(answer, reply)).await
}

pub(crate) async fn release(process: &Process, id: String) -> Result<AnswerOutcome, Fault> {
    process.demand_terminal()?;
    let known = process.state().answers.outcome(&id);
    match known {
        AnswerOutcome::Staged => {}
        AnswerOutcome::UnknownAnswer if process.has_exited() => return Err(process.over()),
        AnswerOutcome::UnknownAnswer | AnswerOutcome::Typed | AnswerOutcome::MovedOn => return Ok(known),
    }
    let asked = ask(process.input()?, |reply| Request::Release(id.clone(), reply));
    match timeout(MOMENT, asked).await {
        Ok(Some(outcome)) => outcome,
        // It ended, perhaps of what was typed.
        Ok(None) if process.state().answers.outcome(&id) == AnswerOutcome::Typed => Ok(AnswerOutcome::Typed),
        Ok(None) => Err(process.over()),
        // Somebody's input is being typed, so whatever was asked is being answered already.
        Err(_) => Ok(process.state().answers.give_up(&id)),
    }
}

/// Runs until the process is over; unanswered calls then see their channel closed.
pub(crate) async fn feed(process: Arc<Process>, mut sink: Sink, mut requests: mpsc::Receiver<Request>) {
    let mut changes = process.changes();
    let over = async {
        while !{
            let state = process.state();
            state.exit.is_some() || state.forgotten
        } {
            // The sender lives in `process`, which we hold.
            let _ = changes.changed().await;
        }
    };
    let serve = async {
        loop {
            let request = tokio::select! {
                biased;
                request = requests.recv() => request,
                () = sink.catch_up(&process), if sink.is_behind() => continue,
            };
            // Their callers may be gone; what was typed is counted all the same.
            match request {
                Some(Request::Feed(feed, reply)) => drop(reply.send(sink.take(&process, feed).await)),
                Some(Request::Response(response, reply)) => drop(reply.send(Ok(sink.respond(&process, &response)))),
                Some(Request::Release(id, reply)) => drop(reply.send(sink.release(&process, &id))),
                None => return,
            }
        }
    };
    tokio::select! {
        () = over => {}
        () = serve => {}
    }
}
