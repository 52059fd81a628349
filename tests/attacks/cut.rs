//! The server killed in the middle of everything that goes through it: what it left is whole or not there, and the next one
//! goes on with the same sandbox and the same token.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use sandbar_client::WorkspaceAsk;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    room::{ONE, RUNTIMES},
    stage::{Stage, Target, request},
    support::{Outcome, Server, until},
};

pub(crate) fn all() -> Vec<Attack> {
    vec![
        Attack::act(
            Class::Surfaces,
            "upload_and_command_when_the_server_is_killed",
            act!(killed),
            Control::Act("when it is not", act!(left_alone)),
        )
        .on(ONE)
        .with(RUNTIMES),
    ]
}

const PART: &str = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"half\"\r\n\r\n";
const END: &str = "\r\n--x--\r\n";
const HALF: usize = 5000;
/// Whether a file is there, how long it is, whether the command lives, and what else lies around.
const LOOK: &str = "wc -c < half 2>/dev/null || echo none; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^7654$'; ls -A | grep -v '^half$' | wc -l";

fn begin(address: &str, head: &str, length: usize, body: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let head = format!(
        "POST /router/{head}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

/// An upload of which a half was sent, and a command that runs; then what is there, after the rest was sent if anybody took it.
async fn in_the_middle(kill: bool) -> Outcome<Finding> {
    let home = tempfile::tempdir()?;
    let mut server = Server::start_in(home.path().join("home"))?;
    let templates = server.home.path().join("templates");
    std::fs::create_dir_all(&templates)?;
    std::fs::write(templates.join("served.toml"), RUNTIMES)?;
    std::fs::write(server.home.path().join("workspaces.toml"), "[default]\ntemplate = \"served\"\n")?;
    let ask = WorkspaceAsk { create: true, ..WorkspaceAsk::default() };
    let made = server.client()?.workspace("cut", &ask).await?;
    let sandbox = made.sandbox_id.clone().ok_or("no sandbox")?.to_string();
    let token = made.headers.get("Authorization").ok_or("no token")?.clone();
    let address = server.base()?.trim_start_matches("http://").to_owned();
    let lines = |path: &str, kind: &str| {
        format!("{path} HTTP/1.1\r\nAuthorization: {token}\r\nX-Sandbox-ID: {sandbox}\r\nContent-Type: {kind}")
    };
    let command = "{\"command\":\"sleep 7654\"}";
    let running = begin(&address, &lines("execute", "application/json"), command.len(), command)?;
    let length = PART.len() + 2 * HALF + END.len();
    let half = format!("{PART}{}", "a".repeat(HALF));
    let mut upload = begin(&address, &lines("upload", "multipart/form-data; boundary=x"), length, &half)?;
    let look = async |server: &Server| -> Outcome<String> {
        let ran = server.client()?.exec(&sandbox, &request(&["sh", "-c", LOOK])).await?;
        Ok(ran.stdout.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    // The half of the upload is staged beside its place.
    until("both are under way", async || Ok(look(&server).await? == "none 1 1")).await?;
    if kill {
        server.kill()?;
        server.restart()?;
    }
    let _refused = upload.write_all(format!("{}{END}", "b".repeat(HALF)).as_bytes());
    let _ended = upload.read_to_end(&mut vec![]);
    let again = server.client()?.workspace("cut", &ask).await?;
    let same = again.sandbox_id == made.sandbox_id && again.headers == made.headers && again.ready;
    let wanted = if kill { "none 0 0".to_owned() } else { format!("{} 1 0", 2 * HALF) };
    let settled = until("it is settled", async || Ok(look(&server).await? == wanted)).await;
    let found = look(&server).await?;
    drop(running);
    server.client()?.delete_session(made.session.as_str()).await?;
    server.kill()?;
    Ok(match kill && same && settled.is_ok() {
        true => Finding::contained("no half of a file, no command, the same sandbox and token"),
        false => Finding::escaped(format!("file, commands and more: {found}; the same: {same}")),
    })
}

async fn killed(_: &Stage, _: &Target) -> Outcome<Finding> {
    in_the_middle(true).await
}

async fn left_alone(_: &Stage, _: &Target) -> Outcome<Finding> {
    in_the_middle(false).await
}
