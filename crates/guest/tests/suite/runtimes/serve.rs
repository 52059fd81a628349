//! Being asked to serve: once, wholly or not at all, beside everything else, and to an end.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use sandbar_guest::protocol::{
    DrainRequest, ExitReason, HelloRequest, HoldRequest, ListRequest, RelieveRequest, Sandboxd, ServeRequest,
    process::{SendSignalRequest, Signal, StartRequest, start_response::Event},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Code;

use super::client::{config, request, serve, shell};
use crate::support::{Guest, Outcome, code, code_of, is_alive, pid_in, until};

pub(crate) async fn is_repeated_and_not_changed(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let client = || served.guest.client.clone();
    client().serve(served.request.clone()).await?;
    // A server that was started again may have another environment for what comes.
    let renewed = ServeRequest { env: HashMap::from([("NEW".into(), "yes".into())]), ..served.request.clone() };
    client().serve(renewed).await?;
    let told = served.execute(shell("echo $NEW$SANDBOX_NAME")).await??;
    assert_eq!(told.stdout, "yes\n");
    for other in [
        ServeRequest { legacy: None, ..served.request.clone() },
        ServeRequest {
            sandboxd: served.request.sandboxd.clone().map(|asked| Sandboxd { token: "x".repeat(16), ..asked }),
            ..served.request.clone()
        },
        ServeRequest::default(),
    ] {
        assert_eq!(code_of(client().serve(other).await), "wrong_state");
    }
    Ok(())
}

pub(crate) async fn refuses_what_cannot_be_meant(guest: Guest) -> Outcome {
    let right = request(&guest, "")?;
    let sandboxd = |change: fn(&mut Sandboxd)| {
        let mut asked = right.sandboxd.clone().unwrap_or_default();
        change(&mut asked);
        ServeRequest { sandboxd: Some(asked), ..right.clone() }
    };
    for wrong in [
        sandboxd(|asked| asked.grpc_port = 0),
        sandboxd(|asked| asked.rest_port = 65_536),
        sandboxd(|asked| asked.rest_port = asked.grpc_port),
        sandboxd(|asked| asked.root = "workspace".into()),
        sandboxd(|asked| asked.root = "/a/../b".into()),
    ] {
        assert_eq!(code_of(guest.client.clone().serve(wrong).await), "bad_request");
    }
    // Nothing asked for is nothing served, and may be asked for later.
    guest.client.clone().serve(ServeRequest::default()).await?;
    guest.client.clone().serve(right).await?;
    Ok(())
}

pub(crate) async fn serves_nothing_where_a_port_is_taken(guest: Guest) -> Outcome {
    let asked = request(&guest, "")?;
    let port = asked.legacy.as_ref().ok_or("no legacy")?.port;
    let taken = std::net::TcpListener::bind(("127.0.0.1", u16::try_from(port)?))?;
    let refused = guest.client.clone().serve(asked.clone()).await.err().ok_or("it served")?;
    assert_eq!(code(&refused), "wrong_state");
    assert!(refused.message().contains(&port.to_string()) && refused.message().contains("template"), "{refused:?}");
    let rest = u16::try_from(asked.sandboxd.as_ref().ok_or("no sandboxd")?.rest_port)?;
    assert!(TcpStream::connect(("127.0.0.1", rest)).await.is_err(), "half of it is served");
    drop(taken);
    guest.client.clone().serve(asked).await?;
    TcpStream::connect(("127.0.0.1", rest)).await?;
    Ok(())
}

pub(crate) async fn stays_out_of_the_list_and_can_be_relieved(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let mut processes = served.processes().await?;
    let request = StartRequest { config: Some(shell("sleep 1000 & sleep 1000 & echo $$ > pid; wait")), pty: None };
    let mut events = processes.start(request).await?.into_inner();
    assert!(matches!(events.message().await?.and_then(|event| event.event), Some(Event::Init(_))));
    // All of it is there.
    pid_in(&served.root.join("pid")).await?;
    let listed = served.guest.client.clone().list(ListRequest {}).await?.into_inner();
    assert!(listed.processes.is_empty(), "the server knows nothing of them");
    // The largest of all is the one that goes, whoever started it.
    served.guest.client.clone().start(served.guest.script("small", "sleep 1000")).await?;
    let relieve = RelieveRequest { reason: ExitReason::PidsLimit.into() };
    served.guest.client.clone().relieve(relieve).await?;
    let end = loop {
        match events.message().await?.and_then(|event| event.event) {
            Some(Event::Exit(exit)) => break exit.exit_code,
            Some(_) => {}
            None => return Err("no exit".into()),
        }
    };
    assert_eq!(end, 137);
    Ok(())
}

pub(crate) async fn drains(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let mut processes = served.processes().await?;
    let trap = shell("trap 'sleep 0.2; echo bye > farewell; exit 7' TERM; echo $$ > pid; while :; do sleep 0.05; done");
    let mut events = processes.start(StartRequest { config: Some(trap), pty: None }).await?.into_inner();
    let pid = pid_in(&served.root.join("pid")).await?;
    assert_eq!(served.rest("GET /v1/health", &[], b"").await?.status, 200);
    let begun = Instant::now();
    served.guest.client.clone().drain(DrainRequest {}).await?;
    assert!(!is_alive(pid) && begun.elapsed().as_millis() >= 150, "it had no time to end");
    assert_eq!(fs::read_to_string(served.root.join("farewell"))?, "bye\n");
    let mut codes = vec![];
    while let Some(event) = events.message().await? {
        if let Some(Event::Exit(exit)) = event.event {
            codes.push(exit.exit_code);
        }
    }
    assert_eq!(codes, [7]);
    let health = served.rest("GET /v1/health", &[], b"").await?;
    assert_eq!((health.status, &health.json()["code"]), (503, &"UNAVAILABLE".into()));
    assert_eq!(health.json()["message"], "sandboxd is shutting down");
    let refused = served.execute(config(&["true"])).await?.err().ok_or("it started")?;
    assert_eq!(refused.code(), Code::Unavailable);
    // Where nothing is served there is nothing to end.
    Guest::start().await?.client.drain(DrainRequest {}).await?;
    Ok(())
}

pub(crate) async fn holds_what_changes_files(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::write(served.root.join("old"), "old")?;
    let address = ("127.0.0.1", u16::try_from(served.rest_port())?);
    let mut upload = TcpStream::connect(address).await?;
    upload.write_all(b"PUT /v1/files/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nha").await?;
    until("a worker", || served.guest.children().len() == 1).await?;
    let hold = || {
        let mut client = served.guest.client.clone();
        tokio::spawn(async move { client.hold(HoldRequest {}).await.map(tonic::Response::into_inner) })
    };
    let mut held = hold();
    let waits = tokio::time::timeout(Duration::from_millis(200), &mut held).await;
    assert!(waits.is_err(), "an upload is under way");
    upload.write_all(b"lf").await?;
    let held = held.await??;
    assert_eq!(fs::read_to_string(served.root.join("f"))?, "half");
    // Whoever comes now waits, and who only reads does not.
    let mut late = TcpStream::connect(address).await?;
    late.write_all(b"DELETE /v1/files/old HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    assert_eq!(served.rest("GET /v1/files/old", &[], b"").await?.status, 200);
    let mut answer = [0; 12];
    let waits = tokio::time::timeout(Duration::from_millis(200), late.read_exact(&mut answer)).await;
    assert!(waits.is_err() && served.root.join("old").exists(), "it is changed though it is held");
    drop(held);
    late.read_exact(&mut answer).await?;
    assert_eq!((&answer, served.root.join("old").exists()), (b"HTTP/1.1 204", false));
    // A server that went away holds nothing.
    drop(hold().await??);
    assert_eq!(served.rest("PUT /v1/files/g", &[], b"x").await?.status, 204);
    Guest::start().await?.client.hold(HoldRequest {}).await?;
    Ok(())
}

pub(crate) async fn tells_who_is_waited_for(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let awaited =
        async || Ok::<_, tonic::Status>(served.guest.client.clone().hello(HelloRequest {}).await?.into_inner().awaited);
    assert_eq!(awaited().await?, 0);
    let mut processes = served.processes().await?;
    let request = StartRequest { config: Some(shell("echo $$ > pid; exec sleep 1000")), pty: None };
    let events = processes.start(request).await?.into_inner();
    let pid = pid_in(&served.root.join("pid")).await?;
    assert_eq!(awaited().await?, 1);
    drop(events);
    until("it is gone", || !is_alive(pid)).await?;
    assert_eq!(awaited().await?, 0);
    Ok(())
}

pub(crate) async fn forgets_what_is_over(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let mut processes = served.processes().await?;
    for _ in 0..600 {
        served_true(&mut processes).await?;
    }
    let gone = SendSignalRequest { process_id: 300, signal: Signal::Sigterm.into() };
    let gone = processes.send_signal(gone).await.err().ok_or("it is still there")?;
    assert_eq!((gone.code(), gone.message()), (Code::NotFound, "process 300 not found"));
    until("no child is left", || served.guest.children().is_empty()).await
}

type Client = sandbar_guest::protocol::process::process_service_client::ProcessServiceClient<tonic::transport::Channel>;

async fn served_true(processes: &mut Client) -> Outcome {
    let request = sandbar_guest::protocol::process::ExecuteRequest { config: Some(config(&["/bin/true"])) };
    assert_eq!(processes.execute(request).await?.into_inner().exit_code, 0);
    Ok(())
}
