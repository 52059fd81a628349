//! A terminal inside: what it asks is seen, and answered once.

use std::time::Duration;

use sandbar_guest::protocol::{
    AnswerOutcome, LookReply, LookRequest, ReleaseAnswerRequest, StageAnswerRequest, StartRequest, TerminalSize,
};

use super::{
    Outcome, Subject,
    cases::{said, spec},
    same,
};
use crate::Guest;

const PROCESS: &str = "prc-asks";
const LOOKS: usize = 2000;

pub(super) async fn a_terminal_is_seen_to_ask_and_answered_once<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let mut guest = provider.connect(&spec.id).await.map_err(said)?;
    let told = |status: tonic::Status| status.to_string();
    let start = StartRequest {
        process_id: PROCESS.into(),
        argv: ["/bin/sh", "-c", "stty -echo; printf 'Secret: '; read -r x; echo; echo got $x; exec cat"]
            .map(String::from)
            .into(),
        cwd: "/".into(),
        terminal: Some(TerminalSize { cols: 80, rows: 24 }),
        timeout_ms: 60_000,
        ..StartRequest::default()
    };
    guest.start(start).await.map_err(told)?;
    // Whether it reads is not told everywhere; that it does not, where it does, would be wrong.
    let seen = until(&guest, |seen| seen.output_end == 8 && seen.reading != Some(false)).await?;
    same("echo", &seen.echo, &false)?;
    let stage = StageAnswerRequest {
        unseen: false,
        process_id: PROCESS.into(),
        answer_id: "a".into(),
        output_offset: seen.output_end,
        input_offset: seen.input_offset,
        keys: b"hush\n".as_slice().into(),
    };
    let staged = guest.stage_answer(stage).await.map_err(told)?.into_inner().outcome();
    same("staged", &staged, &AnswerOutcome::Staged)?;
    for _ in 0..2 {
        let release = ReleaseAnswerRequest { process_id: PROCESS.into(), answer_id: "a".into() };
        let released = guest.release_answer(release).await.map_err(told)?.into_inner().outcome();
        same("released", &released, &AnswerOutcome::Typed)?;
    }
    let answered = "Secret: \r\ngot hush\r\n".len() as u64;
    let seen = until(&guest, |seen| seen.output_end >= answered && seen.reading != Some(false)).await?;
    same("output and input", &(seen.output_end, seen.input_offset), &(answered, 5))?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn until(guest: &Guest, wanted: impl Fn(&LookReply) -> bool) -> Result<LookReply, String> {
    let mut last = None;
    for _ in 0..LOOKS {
        let request = LookRequest { process_id: PROCESS.into() };
        let seen = guest.clone().look(request).await.map_err(|status| status.to_string())?.into_inner();
        if wanted(&seen) {
            return Ok(seen);
        }
        last = Some(seen);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("the terminal never came to it, but to {last:?}"))
}
