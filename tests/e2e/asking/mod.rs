//! Real programs in terminals of real sandboxes: what they ask becomes an approval, its answer is typed as they expect it,
//! and nobody is asked about what only waits for commands. The programs are those of the terminal crate's own tests.

#[path = "../../../crates/terminal/tests/suite/plays/mod.rs"]
pub(crate) mod plays;

mod claude;
mod room;

use plays::{Play, Rest};
use room::Room;

use crate::support::{Outcome, until};

/// A stage of its own for each play: nobody waits for anybody else's cue.
async fn act(test: &str, play: &Play) -> Outcome {
    if !room::has(test, play.needs) {
        return Ok(());
    }
    let room = Room::open(test)?;
    room.begin(play.script)?;
    room.take_part(play).await?;
    room.expect_secret_nowhere(play)?;
    room.close()
}

/// Nobody is asked about it before somebody is asked about another program, which comes later.
async fn leave_alone(test: &str, rest: &Rest) -> Outcome {
    if !room::has(test, rest.needs) {
        return Ok(());
    }
    let room = Room::open(test)?;
    room.begin(rest.script)?;
    room.seen(rest.sign).await?;
    // As long as anything that asks would have had to stand still, and then some.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let later = room.start("read -r -p 'Go on? [y/N] ' answer").await?;
    let asked = room.asked("Go on?").await?;
    assert_eq!(asked["context"]["process"], later.as_str(), "{asked}");
    let all = room.approvals(&["-a"])?;
    assert_eq!(all.len(), 1, "{all:#?}");
    room.close()
}

macro_rules! plays {
    ($($name:ident: $play:ident),* $(,)?) => {
        $(#[tokio::test] async fn $name() -> Outcome { act(stringify!($name), &plays::$play).await })*
    };
}

macro_rules! rests {
    ($($name:ident: $rest:ident),* $(,)?) => {
        $(#[tokio::test] async fn $name() -> Outcome { leave_alone(stringify!($name), &plays::$rest).await })*
    };
}

plays! {
    bash_read: BASH_READ,
    bash_read_of_a_key: BASH_READ_KEY,
    bash_read_of_a_secret: BASH_SECRET,
    bash_select: BASH_SELECT,
    python_input: PYTHON_INPUT,
    python_getpass: PYTHON_GETPASS,
    python_with_a_timer: PYTHON_TICKING,
    git_credentials: GIT_CREDENTIALS,
    git_hunk: GIT_HUNK,
    ssh_keygen: SSH_KEYGEN,
    ssh: SSH,
    apt: APT,
    npm_init: NPM_INIT,
}

rests! {
    vim: VIM,
    less: LESS,
    htop: HTOP,
    tmux: TMUX,
    bash_prompt: BASH_PROMPT,
    python_prompt: PYTHON_PROMPT,
    printed: PRINTED,
}

/// It shows a question, and works: whether it waits is not known before it rests.
#[tokio::test]
async fn a_program_at_work() -> Outcome {
    let rest = Rest { needs: &[], script: "printf 'Are you sure? [y/N] '; while :; do :; done", sign: "Are you sure?" };
    leave_alone("a_program_at_work", &rest).await
}

/// Somebody was faster, in the terminal itself.
#[tokio::test]
async fn what_is_typed_in_the_terminal_closes_the_question() -> Outcome {
    let room = Room::open("what_is_typed_in_the_terminal_closes_the_question")?;
    let process = room.start(plays::BASH_READ.script).await?;
    let asked = room.asked("Deploy to production?").await?;
    room.server.client()?.write_stdin(room::NAME, &process, None, "n\r".into(), false).await?;
    until("the question is taken back", async || {
        let all = room.approvals(&["-a"])?;
        Ok(all.iter().any(|one| one["id"] == asked["id"] && one["state"] == "withdrawn"))
    })
    .await?;
    room.seen("took <n>").await?;
    let id = asked["id"].as_str().ok_or("no id")?;
    let late = room.server.command(&["answer", id, "--choice", "yes"]).output()?;
    assert!(!late.status.success(), "{late:?}");
    assert!(room.approvals(&[])?.is_empty());
    room.close()
}
