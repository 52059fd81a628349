//! Where values could be found: inside the sandbox, in the server's files, in what its API tells.

use super::{VALUES, in_place};
use crate::{
    attack::Finding,
    stage::{Stage, Target},
    support::{Outcome, text},
};

/// In files, processes' environments and arguments, and the memory of every process that it may read.
async fn find_inside(stage: &Stage, target: &Target, words: &[&str]) -> Outcome<Finding> {
    in_place(stage, target).await?;
    for word in words {
        // In two halves, lest the search find itself.
        let (one, two) = word.split_at(word.len() / 2);
        let script = format!(
            "word={one}; word=$word''{two}
            grep -rlsF \"$word\" /workspace/. /home /root /tmp /run /var /etc /dev/shm 2>/dev/null | grep -v attacks
            for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
              [ \"$file\" = /proc/$$/cmdline ] && continue
              grep -qsaF \"$word\" $file && echo $file
            done
            env | grep -F \"$word\""
        );
        let ran = stage.sh(target, &script).await?;
        if !ran.stdout.trim().is_empty() {
            return Ok(Finding::escaped(
                ran.stdout.lines().next().unwrap_or_default().chars().take(40).collect::<String>(),
            ));
        }
    }
    Ok(Finding::contained("found nowhere"))
}

pub(super) async fn inside(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let encoded = VALUES.map(|value| sandbar_api::bytes::encode(value.as_bytes()));
    let words: Vec<&str> = VALUES.into_iter().chain(encoded.iter().map(String::as_str)).collect();
    find_inside(stage, target, &words).await
}

pub(super) async fn placeholder_inside(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = stage.placeholder(target, "API_TOKEN").await?;
    find_inside(stage, target, &[&token]).await
}

/// Every file of the home but the key, the log among them.
async fn find_kept(stage: &Stage, target: &Target, words: &[&str]) -> Outcome<Finding> {
    in_place(stage, target).await?;
    for entry in std::fs::read_dir(stage.server.home.path())?.flatten().filter(|entry| entry.path().is_file()) {
        let bytes = std::fs::read(entry.path())?;
        for word in words {
            if bytes.windows(word.len()).any(|window| window == word.as_bytes()) {
                return Ok(Finding::escaped(format!("{word} is in {}", entry.file_name().to_string_lossy())));
            }
        }
    }
    Ok(Finding::contained("found in no file"))
}

pub(super) async fn kept(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let encoded = VALUES.map(|value| sandbar_api::bytes::encode(value.as_bytes()));
    let words: Vec<&str> = VALUES.into_iter().chain(encoded.iter().map(String::as_str)).collect();
    find_kept(stage, target, &words).await
}

pub(super) async fn name_kept(stage: &Stage, target: &Target) -> Outcome<Finding> {
    find_kept(stage, target, &["API_TOKEN"]).await
}

async fn find_read(stage: &Stage, target: &Target, words: &[&str]) -> Outcome<Finding> {
    in_place(stage, target).await?;
    let id = &target.id;
    for arguments in [
        &["events"][..],
        &["secret", "ls"],
        &["net", "log", id],
        &["net", "show", id],
        &["inspect", id],
        &["gateway"],
        &["usage"],
    ] {
        let ran = stage.server.command(&[&["--json"], arguments].concat()).output()?;
        let said = text(&ran.stdout) + &text(&ran.stderr);
        if let Some(word) = words.iter().find(|word| said.contains(**word)) {
            return Ok(Finding::escaped(format!("{word} is in `{}`", arguments.join(" "))));
        }
    }
    for path in
        ["/v1/secrets", "/v1/secrets/API_TOKEN", "/v1/secrets/API_TOKEN/value", "/v1/gateway", "/v1/events?limit=1000"]
    {
        let (host, token) = (stage.address()?, &stage.token);
        let said = stage.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        ))?;
        if let Some(word) = words.iter().find(|word| said.contains(**word)) {
            return Ok(Finding::escaped(format!("{word} is in {path}")));
        }
    }
    Ok(Finding::contained("told by none"))
}

pub(super) async fn read_back(stage: &Stage, target: &Target) -> Outcome<Finding> {
    find_read(stage, target, &VALUES).await
}

pub(super) async fn name_read(stage: &Stage, target: &Target) -> Outcome<Finding> {
    find_read(stage, target, &["API_TOKEN"]).await
}
