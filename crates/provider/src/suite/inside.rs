//! Running a command inside, for the cases.

use sandbar_guest::protocol::{FollowFrom, FollowRequest, StartRequest, follow_event::Event, follow_request::Message};

use crate::Guest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    /// Both streams, as they came.
    pub output: String,
}

/// Runs a shell script in the sandbox and waits for its end.
pub async fn run(guest: &Guest, script: &str) -> Result<Ran, String> {
    let told = |status: tonic::Status| format!("`{script}`: {status}");
    let mut guest = guest.clone();
    let mut random = [0u8; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut random))
        .map_err(|error| error.to_string())?;
    let process_id = format!("prc-{:016x}", u64::from_le_bytes(random));
    let start = StartRequest {
        process_id: process_id.clone(),
        argv: ["/bin/sh", "-c", script].map(String::from).into(),
        cwd: "/".into(),
        timeout_ms: 60_000,
        ..StartRequest::default()
    };
    guest.start(start).await.map_err(told)?;
    let from = FollowRequest { message: Some(Message::From(FollowFrom { process_id, offset: 0 })) };
    let mut events = guest.follow(tokio_stream::once(from)).await.map_err(told)?.into_inner();
    let mut output = Vec::new();
    while let Some(event) = events.message().await.map_err(told)? {
        match event.event {
            Some(Event::Output(chunk)) => output.extend_from_slice(&chunk.data),
            Some(Event::Exit(exit)) => {
                return Ok(Ran { code: exit.code, output: String::from_utf8_lossy(&output).into_owned() });
            }
            None => {}
        }
    }
    Err(format!("`{script}`: the stream ended before the process did"))
}
