//! Conversations and their workspaces end to end: exactly one sandbox for each, however many ask at once, and when the
//! server is killed in the middle.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt as _, future::try_join_all, stream::FuturesUnordered};
use sandbar_api::{SandboxState, Workspace};
use sandbar_client::{Client, SandboxQuery, WorkspaceAsk};
use sandbar_test_harness::endurance;
use serde_json::Value;

use crate::support::{Dice, Outcome, Server, expect_clean, expect_gapless};

fn ask() -> WorkspaceAsk {
    WorkspaceAsk { create: true, agent: Some("coder".into()), wait: None }
}

async fn sandboxes(client: &Client) -> Outcome<Vec<String>> {
    let all: Vec<_> = client.sandboxes(SandboxQuery::default()).collect().await;
    let mut ids = vec![];
    for one in all {
        let one = one?;
        assert_eq!(one.state, SandboxState::Ready, "{}", one.name);
        ids.push(one.id.to_string());
    }
    Ok(ids)
}

fn sandbox(place: &Workspace) -> Outcome<String> {
    Ok(place.sandbox_id.as_ref().ok_or("it has no sandbox")?.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_conversations_have_as_many_sandboxes() -> Outcome {
    let crowd = endurance(30, 100);
    let server = Server::start()?;
    let (client, ask) = (server.client()?, ask());
    let names: Vec<_> = (0..crowd).map(|number| format!("talk-{number}")).collect();
    let places = try_join_all(names.iter().map(|name| client.workspace(name, &ask))).await?;
    let distinct: BTreeSet<_> = places.iter().map(sandbox).collect::<Outcome<_>>()?;
    assert_eq!(distinct.len(), crowd);
    assert!(places.iter().all(|place| place.ready && place.mcp_url.starts_with("http://127.0.0.1:")));
    let racing = try_join_all((0..crowd).map(|_| client.workspace("race", &ask))).await?;
    assert!(racing.iter().all(|place| *place == racing[0] && place.ready), "one for all of them");
    assert_eq!(sandboxes(&client).await?.len(), crowd + 1);
    try_join_all(names.iter().map(|name| client.delete_session(name))).await?;
    assert_eq!(sandboxes(&client).await?, [sandbox(&racing[0])?]);
    client.delete_session("race").await?;
    drop(client);
    expect_clean(server.home.path())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_in_the_middle_leaves_one() -> Outcome {
    let rounds = endurance(8, 25);
    let seed = u64::from(std::process::id()) + 0x51_7cc1_b727;
    eprintln!("seed {seed:#x}");
    let (mut dice, mut server) = (Dice(seed), Server::start()?);
    let (mut answered, mut cut_off) = (0, 0);
    for round in 0..rounds {
        let name = format!("talk-{round}");
        let (client, ask) = (server.impatient()?, ask());
        let mut calls: FuturesUnordered<_> = (0..10).map(|_| client.workspace(&name, &ask)).collect();
        let mut told = vec![];
        let moment = tokio::time::sleep(Duration::from_millis(dice.roll(100)));
        let answers = async {
            while let Some(answer) = calls.next().await {
                told.push(answer);
            }
        };
        tokio::select! {
            () = answers => {}
            () = moment => {}
        }
        server.kill()?;
        server.restart()?;
        let client = server.client()?;
        let places = try_join_all((0..10).map(|_| client.workspace(&name, &ask))).await?;
        assert!(places.iter().all(|place| *place == places[0] && place.ready), "round {round}: {places:?}");
        cut_off += u64::from(told.len() < 10);
        for before in told.into_iter().flatten() {
            answered += 1;
            assert_eq!(sandbox(&before)?, sandbox(&places[0])?, "round {round}: what was told holds");
            assert_eq!(before.headers, places[0].headers, "round {round}");
        }
        let session = client.session(&name).await?;
        assert_eq!(session.sandboxes.len(), 1, "round {round}: {session:?}");
    }
    eprintln!("{answered} calls were answered before a kill, which came in the middle {cut_off} times");
    assert!(cut_off > 0, "no kill came in the middle");
    let client = server.client()?;
    assert_eq!(sandboxes(&client).await?.len() as u64, rounds, "and no other is left");
    assert_eq!(server.made()? as u64, rounds, "nor anything of one");
    expect_gapless(&client).await?;
    for round in 0..rounds {
        client.delete_session(&format!("talk-{round}")).await?;
    }
    server.kill()?;
    expect_clean(server.home.path())
}

/// With nothing but HTTP, as an agent framework does it.
#[tokio::test]
async fn from_an_empty_post_to_a_commands_result() -> Outcome {
    let server = Server::start()?;
    let create = ["--json", "token", "create", "--name", "framework", "--role", "operator"];
    let made: Value = serde_json::from_str(&crate::support::done(&mut server.command(&create))?)?;
    let secret = made["secret"].as_str().ok_or("no secret")?;
    let http = reqwest::Client::new();
    let url = format!("{}/api/sessions/thread%2F1/sandbox?create=true&agent=kagent/coder", server.base()?);
    let place: Value = http.post(&url).bearer_auth(secret).send().await?.error_for_status()?.json().await?;
    let url = place["mcp_url"].as_str().ok_or("no URL")?;
    let header = place["headers"]["Authorization"].as_str().ok_or("no header")?;
    let answer = crate::support::tool(url, header, "echo from inside").await?;
    assert!(answer.contains(r"from inside\n"), "{answer}");
    Ok(())
}
