//! A crowd around one terminal: fifty viewers, one of whom does not read. The others get every byte, and nobody's slowness
//! is anybody's memory.

use std::{sync::Arc, time::Duration};

use sandbar_api::{Control, CreateSandbox, StartProcess, TerminalSize};
use sandbar_client::{AttachEvent, AttachOptions, Attachment, Client};
use tokio::sync::Barrier;

use crate::support::{Outcome, Server};

const NAME: &str = "crowd";
const VIEWERS: usize = 50;
/// Of lines; the terminal makes two bytes of each newline.
const LINES: u64 = 100_000;
/// Far more than fits into the sockets of one that does not read.
const SCRIPT: &str = "stty -echo; echo ready; read -r go; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); printf '%079d\\n' $i; done; echo over";
/// KiB. The stalled viewer's share of the output alone is 8 MiB.
const MOST_GROWTH: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_viewer_costs_the_others_nothing() -> Outcome {
    let server = Server::start()?;
    let client = server.client()?;
    client.create(&CreateSandbox { name: Some(NAME.into()), ..Default::default() }, None).await?;
    let argv = ["bash", "-c", SCRIPT].map(String::from).into();
    let terminal = Some(TerminalSize { cols: 100, rows: 30 });
    let request = StartProcess { argv, terminal, ..Default::default() };
    let process = client.start_process(NAME, &request).await?.id.to_string();

    let stalled = attach(&client, &process, Control::View).await?;
    let all_there = Arc::new(Barrier::new(VIEWERS));
    let viewers: Vec<_> = (1..VIEWERS)
        .map(|_| {
            let (client, process, all_there) = (client.clone(), process.clone(), all_there.clone());
            tokio::spawn(async move {
                let attachment = attach(&client, &process, Control::View).await?;
                all_there.wait().await;
                all_of(attachment).await
            })
        })
        .collect();
    let keyboard = attach(&client, &process, Control::Take).await?;
    tokio::time::timeout(Duration::from_secs(300), all_there.wait()).await?;
    // Until then keys are echoed.
    crate::support::until("it is ready", async || Ok(client.screen(NAME, &process).await?.lines[0].contains("ready")))
        .await?;
    let before = server.resident()?;
    keyboard.typist().send("\n").await?;
    let told = tokio::spawn(all_of(keyboard));
    let mut most = before;
    let mut seen = vec![];
    for viewer in viewers {
        seen.push(viewer.await??);
        most = most.max(server.resident()?);
    }
    let whole = told.await??;
    expect_all(&whole)?;
    assert!(seen.len() == VIEWERS - 1 && seen.iter().all(|bytes| *bytes == whole), "a viewer saw something else");
    eprintln!("{} viewers, {} bytes each, server {before} to {most} KiB", seen.len(), whole.len());
    assert!(most < before + MOST_GROWTH, "the server grew from {before} to {most} KiB");

    // It has missed nothing either, however late it comes.
    assert!(all_of(stalled).await? == whole, "who stalled lost something");
    client.delete(NAME).await?;
    Ok(())
}

async fn attach(client: &Client, process: &str, control: Control) -> Outcome<Attachment> {
    let options = AttachOptions { from: Some(0), raw: true, control, ..AttachOptions::default() };
    Ok(client.attach(NAME, process, options).await?)
}

async fn all_of(mut attachment: Attachment) -> Outcome<Vec<u8>> {
    let mut seen = Vec::new();
    while let Some(event) = attachment.next().await {
        match event? {
            AttachEvent::Output { offset, data } => {
                seen.extend_from_slice(&data);
                assert_eq!(offset, seen.len() as u64, "a byte is missing or came twice");
            }
            AttachEvent::Exit(_) => return Ok(seen),
            AttachEvent::Reconnecting => return Err("the connection broke".into()),
            _ => {}
        }
    }
    Err("the terminal ended without an exit".into())
}

fn expect_all(seen: &[u8]) -> Outcome {
    let text = std::str::from_utf8(seen)?.replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"ready"), Some(&"over")));
    let numbers = lines[1..lines.len() - 1].iter().map(|line| line.trim_start_matches('0').parse::<u64>());
    assert!(numbers.eq((1..=LINES).map(Ok)), "lines are missing");
    Ok(())
}
