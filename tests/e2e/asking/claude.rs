//! Claude Code in a sandbox, with a scripted model behind the gate: somebody is asked for each permission, and by each
//! question of its own.

use std::fs;

use crate::{
    asking::plays::{self, Play, model},
    asking::room::{self, Room},
    support::{Outcome, until},
};

/// It asks the model by way of the gate; the model has no key, so it may be without TLS.
async fn act(test: &str, play: &Play, wish: &str) -> Outcome {
    let Some(program) = plays::claude(test).filter(|_| room::has(test, &["bash"])) else { return Ok(()) };
    let port = model::start()?.port();
    let config = format!(
        "[network]\nprivate = [\"127.0.0.0/8\"]\n\n[network.hosts]\n\"llm.test\" = [\"127.0.0.1\"]\n\n\
         [upstream.scripted]\nformat = \"anthropic\"\nurl = \"http://llm.test:{port}\"\n\n\
         [model.claude-tiny]\nupstream = \"scripted\"\nmax_output = 64000\nimage_tokens = 100\ninput_usd = 3\noutput_usd = 15\n"
    );
    let room = Room::furnished(test, |home| Ok(fs::write(home.join("gateway.toml"), config)?))?;
    // Its packages are the workspace: two levels above the program's own.
    let packages = program.ancestors().nth(4).ok_or("no packages")?;
    let inside = format!("CLAUDE=/workspace/{}", program.strip_prefix(packages)?.display());
    let (wish, workspace) = (format!("WISH={wish}"), format!("{}:rw", packages.display()));
    room.begin_with(&["-w", &workspace, "-e", &inside, "-e", &wish], play.script)?;
    room.take_part(play).await?;
    until(
        "the gate has seen it",
        async || Ok(room.json(&["usage", room::NAME])?["total"]["calls"].as_u64() >= Some(2)),
    )
    .await?;
    assert!(room.approvals(&[])?.is_empty(), "it asks nothing more");
    room.close()
}

#[tokio::test]
async fn claude_code() -> Outcome {
    act("claude_code", &plays::CLAUDE_CODE, model::WISH_FOR_A_FILE).await
}

#[tokio::test]
async fn claude_code_asks() -> Outcome {
    act("claude_code_asks", &plays::CLAUDE_CODE_ASKS, model::WISH_TO_BE_ASKED).await
}
