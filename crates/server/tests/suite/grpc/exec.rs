//! Commands that belong to their call.

use std::{fs, time::Duration};

use tokio::time::{sleep, timeout};
use tonic::{Code, Request, Status, Streaming};

use crate::{
    grpc::SOON,
    grpc::api::{
        ExecEvent, ExecRequest, ExitReason, Process, Stream, exec_event::Event, processes_client::ProcessesClient,
    },
    grpc::channel,
    grpc::end,
    grpc::next,
    grpc::told,
    grpc::until,
    support::Bench,
};

pub(crate) fn shell(script: &str) -> ExecRequest {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    ExecRequest { sandbox: "box".to_owned(), argv, cwd: Some("/".to_owned()), ..ExecRequest::default() }
}

struct Ran {
    started: Process,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Process,
}

async fn all(mut events: Streaming<ExecEvent>) -> Ran {
    let Some(Event::Started(started)) = next(&mut events).await.event else { panic!("not started first") };
    let (mut stdout, mut stderr, mut offset) = (vec![], vec![], 0);
    loop {
        match next(&mut events).await.event.unwrap() {
            Event::Output(chunk) => {
                assert_eq!(chunk.offset, offset);
                offset += chunk.data.len() as u64;
                match chunk.stream() {
                    Stream::Stdout => stdout.extend_from_slice(&chunk.data),
                    Stream::Stderr => stderr.extend_from_slice(&chunk.data),
                    Stream::Unspecified => panic!("of no stream"),
                }
            }
            Event::Exit(exit) => {
                assert!(events.message().await.unwrap().is_none(), "the exit is the last");
                assert_eq!(exit.output_end, offset);
                return Ran { started, stdout, stderr, exit };
            }
            Event::Started(_) => panic!("started twice"),
        }
    }
}

pub(crate) async fn run(bench: &Bench) {
    let mut client = ProcessesClient::new(channel(bench).await);
    let ran = all(client.exec(shell("echo out; echo err >&2; exit 3")).await.unwrap().into_inner()).await;
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let exit = ran.exit.exit.unwrap();
    assert_eq!((exit.code, exit.reason()), (3, ExitReason::Exited));
    assert!(ran.started.id.starts_with("prc-") && ran.started.id == ran.exit.id);
    assert!(ran.started.started_at.is_some_and(|at| at.seconds > 1_700_000_000));

    let stdin: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let request = ExecRequest {
        stdin: Some(stdin.clone().into()),
        env: [("A".into(), "b".into())].into(),
        ..shell("cat; echo $A >&2")
    };
    let ran = all(client.exec(request).await.unwrap().into_inner()).await;
    assert!(ran.stdout == stdin, "{} bytes came back", ran.stdout.len());
    assert_eq!(ran.stderr, b"b\n");
    let ran = all(client
        .exec(ExecRequest { stdin: Some(vec![0; 1 << 20].into()), ..shell("exec <&-; exit 0") })
        .await
        .unwrap()
        .into_inner())
    .await;
    assert_eq!(ran.exit.exit.unwrap().code, 0, "a command need not read its input");

    let timeout = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let ran = all(client.exec(ExecRequest { timeout, ..shell("sleep 60") }).await.unwrap().into_inner()).await;
    assert_eq!(ran.exit.exit.unwrap().reason(), ExitReason::Timeout);
}

pub(crate) async fn large(bench: &Bench) {
    const SIZE: usize = 32 << 20;
    let mut client = ProcessesClient::new(channel(bench).await);
    let mut events = client.exec(shell(&format!("head -c {SIZE} /dev/zero | tr '\\0' x"))).await.unwrap().into_inner();
    assert!(matches!(next(&mut events).await.event, Some(Event::Started(_))));
    let mut size = 0;
    let exit = loop {
        match next(&mut events).await.event.unwrap() {
            Event::Output(chunk) => {
                assert!(chunk.data.iter().all(|byte| *byte == b'x'));
                // One that falls behind once for a moment is waited for.
                if size < 1 << 20 && size + chunk.data.len() >= 1 << 20 {
                    sleep(Duration::from_millis(500)).await;
                    let other = client.clone().exec(shell("true")).await.unwrap().into_inner();
                    assert_eq!(all(other).await.exit.exit.unwrap().code, 0);
                }
                size += chunk.data.len();
            }
            Event::Exit(exit) => break exit,
            Event::Started(_) => panic!("started twice"),
        }
    };
    assert_eq!((size, exit.exit.unwrap().code), (SIZE, 0));
}

/// A command that leaves a child in a session of its own, and says which.
async fn begun(
    bench: &Bench,
    client: &mut ProcessesClient<tonic::transport::Channel>,
    name: &str,
    request: impl FnOnce(ExecRequest) -> Request<ExecRequest>,
) -> (Streaming<ExecEvent>, String) {
    tried(bench, client, name, request).await.unwrap()
}

async fn tried(
    bench: &Bench,
    client: &mut ProcessesClient<tonic::transport::Channel>,
    name: &str,
    request: impl FnOnce(ExecRequest) -> Request<ExecRequest>,
) -> Result<(Streaming<ExecEvent>, String), Status> {
    let at = bench.directory.path().join(name);
    let script = format!("setsid sleep 1000 & echo $! > {0}.part; mv {0}.part {0}; wait", at.display());
    let mut events = client.exec(request(shell(&script))).await?.into_inner();
    let first = timeout(SOON, events.message()).await.expect("something comes")?.expect("it goes on");
    assert!(matches!(first.event, Some(Event::Started(_))));
    until("the child", async || at.exists()).await;
    Ok((events, fs::read_to_string(&at).unwrap().trim().to_owned()))
}

/// One with a deadline, that goes on with this word. On a busy machine its time may be over before the child is there, but
/// not each time.
async fn bounded(bench: &Bench, name: &str, word: &str) -> (Streaming<ExecEvent>, String) {
    let mut client = ProcessesClient::new(channel(bench).await);
    for seconds in [5, 20] {
        let name = format!("{name}-{seconds}");
        let begun = tried(bench, &mut client, &name, |request| {
            let argv = request.argv.iter().map(|part| part.replace("wait", word)).collect();
            let mut request = Request::new(ExecRequest { argv, ..request });
            request.metadata_mut().insert("grpc-timeout", format!("{seconds}S").parse().unwrap());
            request
        });
        match timeout(Duration::from_secs(seconds), begun).await {
            Ok(Ok(begun)) => return begun,
            Ok(Err(status)) => assert_eq!(status.code(), Code::DeadlineExceeded),
            Err(_) => {}
        }
    }
    panic!("its time was over each time");
}

fn lives(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

pub(crate) async fn cancelled(bench: &Bench) {
    let mut client = ProcessesClient::new(channel(bench).await);
    let (events, pid) = begun(bench, &mut client, "cancelled", Request::new).await;
    assert!(lives(&pid));
    drop(events);
    until("its death", async || !lives(&pid)).await;

    // Also of one that goes away while its output waits.
    let (events, pid) = begun(bench, &mut client, "gone", |request| {
        let argv = request.argv.iter().map(|word| word.replace("wait", "yes")).collect();
        Request::new(ExecRequest { argv, ..request })
    })
    .await;
    sleep(Duration::from_millis(300)).await;
    drop((events, client));
    until("its death", async || !lives(&pid)).await;
}

pub(crate) async fn late(bench: &Bench) {
    let heard = async {
        let (mut events, pid) = bounded(bench, "late", "wait").await;
        assert_eq!(end(&mut events).await.unwrap_err().code(), Code::DeadlineExceeded);
        until("its death", async || !lives(&pid)).await;
    };
    // Of a reader that stands still too: it is the server that counts.
    let unheard = async {
        let (mut events, pid) = bounded(bench, "still", "yes").await;
        until("its death", async || !lives(&pid)).await;
        assert_eq!(end(&mut events).await.unwrap_err().code(), Code::DeadlineExceeded);
    };
    // At once, as each takes all of its time.
    tokio::join!(heard, unheard);

    let mut client = ProcessesClient::new(channel(bench).await);
    let mut malformed = Request::new(shell("true"));
    malformed.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    let refused = client.exec(malformed).await.unwrap_err();
    assert_eq!(told(&refused), (Code::InvalidArgument, "bad_request".to_owned()));
}
