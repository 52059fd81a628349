//! Archives made to write elsewhere than where they are unpacked. The control of each is a tar that trusts them.

use std::{io::Write as _, path::Path, process::Command};

use bytes::Bytes;
use futures_util::stream;
use tar::{EntryType, Header};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    files::is_set_user_id,
    files_api::refusal,
    stage::{Stage, Target},
    support::Outcome,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, control| Attack::act(Class::Files, name, act, Control::Act("by a tar that trusts it", control));
    vec![
        doing("archive_with_dots", act!(dots), act!(trusted_dots)),
        doing("archive_with_an_absolute_name", act!(absolute), act!(trusted_absolute)),
        doing("archive_with_a_link_then_a_file", act!(link_then_file), act!(trusted_link_then_file)),
        doing("archive_with_a_hard_link_out", act!(hard_link), act!(trusted_hard_link)),
        doing("archive_through_a_link_of_the_sandbox", act!(through_link), act!(trusted_through_link)),
        doing("archive_with_a_pipe", act!(pipe), act!(trusted_pipe)),
        doing("archive_with_a_device", act!(device), act!(trusted_device)),
        doing("archive_with_a_set_user_id_file", act!(set_user_id), act!(trusted_set_user_id)),
        doing("archive_with_a_name_that_never_ends", act!(endless_name), act!(trusted_pipe)),
        doing("archive_larger_than_allowed", act!(bomb), act!(trusted_bomb)).with("max_file = 1048576\n"),
    ]
}

/// One entry, written by hand: libraries refuse to make these.
fn entry(archive: &mut Vec<u8>, name: &str, kind: EntryType, link: &str, mode: u32, content: &[u8]) -> Outcome {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    if kind == EntryType::Char {
        header.set_device_major(1)?;
        header.set_device_minor(3)?;
    }
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
    Ok(())
}

fn ended(mut archive: Vec<u8>) -> Vec<u8> {
    archive.extend_from_slice(&[0; 1024]);
    archive
}

fn one(name: &str, kind: EntryType, link: &str, mode: u32, content: &[u8]) -> Outcome<Vec<u8>> {
    let mut archive = vec![];
    entry(&mut archive, name, kind, link, mode, content)?;
    Ok(ended(archive))
}

async fn unpack(stage: &Stage, target: &Target, archive: Vec<u8>) -> Outcome<Result<u64, String>> {
    let body = stream::iter([Ok(Bytes::from(archive))]);
    match stage.client.unpack(&target.id, "/workspace/unpacked", body).await {
        Ok(count) => Ok(Ok(count)),
        Err(error) => refusal(error).map(Err),
    }
}

/// Unpacked by a program that believes every name, in a directory of the host.
fn trust(place: &Path, archive: &[u8]) -> Outcome {
    let mut command = Command::new("tar");
    command
        .args(["-xPpf", "-"])
        .current_dir(place)
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut tar = command.spawn()?;
    tar.stdin.take().ok_or("no stdin")?.write_all(archive)?;
    tar.wait()?;
    Ok(())
}

/// `place` is what the archive aims at.
async fn aimed(stage: &Stage, target: &Target, archive: Vec<u8>, place: &Path) -> Outcome<Finding> {
    let answer = unpack(stage, target, archive).await?;
    Ok(reached(place, &format!("{answer:?}")))
}

fn reached(place: &Path, how: &str) -> Finding {
    if place.symlink_metadata().is_ok() {
        // Or the next profile's attempt would find it.
        let gone = std::fs::remove_file(place);
        return Finding::escaped(format!("{} was written {gone:?}", place.display()));
    }
    Finding::contained(how)
}

/// `../dots` from a directory in the workspace is in the workspace: on the host it can be seen.
fn dots_archive() -> Outcome<Vec<u8>> {
    one("../dots", EntryType::Regular, "", 0o644, b"x")
}

async fn dots(stage: &Stage, target: &Target) -> Outcome<Finding> {
    aimed(stage, target, dots_archive()?, &target.shared.join("dots")).await
}

async fn trusted_dots(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("tar")?;
    std::fs::create_dir(place.join("unpacked"))?;
    trust(&place.join("unpacked"), &dots_archive()?)?;
    Ok(reached(&place.join("dots"), "not written"))
}

async fn absolute(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let outside = stage.directory("abs")?.join("f");
    let archive = one(&outside.to_string_lossy(), EntryType::Regular, "", 0o644, b"x")?;
    let found = aimed(stage, target, archive, &outside).await?;
    // Inside, the same name must not have been made outside of the directory either.
    let seen = stage.exec(target, &["test", "-e", &outside.to_string_lossy()]).await?;
    Ok(if seen.exit.code == 0 { Finding::escaped("out of the directory") } else { found })
}

async fn trusted_absolute(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let outside = stage.directory("abs")?.join("f");
    trust(&stage.directory("tar")?, &one(&outside.to_string_lossy(), EntryType::Regular, "", 0o644, b"x")?)?;
    Ok(reached(&outside, "not written"))
}

fn link_archive(outside: &Path) -> Outcome<Vec<u8>> {
    let mut archive = vec![];
    entry(&mut archive, "way", EntryType::Symlink, &outside.to_string_lossy(), 0o777, b"")?;
    entry(&mut archive, "way/f", EntryType::Regular, "", 0o644, b"x")?;
    Ok(ended(archive))
}

async fn link_then_file(stage: &Stage, target: &Target) -> Outcome<Finding> {
    // To the workspace, where the sandbox may write, and out of the directory that is unpacked into.
    let place = target.shared.join("beside");
    if !place.exists() {
        std::fs::create_dir(&place)?;
    }
    stage.sh(target, "chmod 777 beside").await?;
    let found = aimed(stage, target, link_archive(Path::new("/workspace/beside"))?, &place.join("f")).await?;
    stage.sh(target, "rm -rf unpacked").await?;
    Ok(found)
}

async fn trusted_link_then_file(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let outside = stage.directory("out")?;
    trust(&stage.directory("tar")?, &link_archive(&outside)?)?;
    Ok(reached(&outside.join("f"), "not written"))
}

fn hard_link_archive(aim: &Path) -> Outcome<Vec<u8>> {
    let mut archive = vec![];
    entry(&mut archive, "hard", EntryType::Link, &aim.to_string_lossy(), 0o644, b"")?;
    Ok(ended(archive))
}

/// A second name of a file outside of the directory, which would then be written through it.
async fn hard_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut how = vec![];
    for aim in ["/workspace/attacks", "../attacks", "/etc/passwd", "/usr/bin/true"] {
        how.push(format!("{:?}", unpack(stage, target, hard_link_archive(Path::new(aim))?).await?));
        let hard = target.shared.join("unpacked/hard");
        if hard.symlink_metadata().is_ok() {
            std::fs::remove_file(&hard)?;
            return Ok(Finding::escaped(format!("{aim} has a second name")));
        }
    }
    how.dedup();
    Ok(Finding::contained(how.join(", ")))
}

async fn trusted_hard_link(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (outside, place) = (stage.directory("out")?, stage.directory("tar")?);
    std::fs::write(outside.join("f"), "x")?;
    trust(&place, &hard_link_archive(&outside.join("f"))?)?;
    Ok(reached(&place.join("hard"), "not linked"))
}

async fn through_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let outside = stage.directory("out")?;
    let script = format!("rm -rf unpacked && mkdir unpacked && ln -s {} unpacked/way", outside.display());
    stage.sh(target, &script).await?;
    let archive = one("way/f", EntryType::Regular, "", 0o644, b"x")?;
    aimed(stage, target, archive, &outside.join("f")).await
}

async fn trusted_through_link(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (outside, place) = (stage.directory("out")?, stage.directory("tar")?);
    std::os::unix::fs::symlink(&outside, place.join("way"))?;
    trust(&place, &one("way/f", EntryType::Regular, "", 0o644, b"x")?)?;
    Ok(reached(&outside.join("f"), "not written"))
}

async fn pipe(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let archive = one("node", EntryType::Fifo, "", 0o644, b"")?;
    aimed(stage, target, archive, &target.shared.join("unpacked/node")).await
}

async fn trusted_pipe(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("tar")?;
    trust(&place, &one("node", EntryType::Fifo, "", 0o644, b"")?)?;
    Ok(reached(&place.join("node"), "not made"))
}

async fn device(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let archive = one("node", EntryType::Char, "", 0o644, b"")?;
    aimed(stage, target, archive, &target.shared.join("unpacked/node")).await
}

async fn trusted_device(stage: &Stage, _: &Target) -> Outcome<Finding> {
    if !stage.is_root {
        return Ok(Finding::not_run("an ordinary user makes no device on the host either"));
    }
    let place = stage.directory("tar")?;
    trust(&place, &one("node", EntryType::Char, "", 0o644, b"")?)?;
    Ok(reached(&place.join("node"), "not made"))
}

async fn set_user_id(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answer = unpack(stage, target, one("suid", EntryType::Regular, "", 0o6755, b"x")?).await?;
    let bad = is_set_user_id(&target.shared.join("unpacked/suid"));
    Ok(if bad { Finding::escaped("it is so on the host") } else { Finding::contained(format!("{answer:?}")) })
}

async fn trusted_set_user_id(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("tar")?;
    trust(&place, &one("suid", EntryType::Regular, "", 0o6755, b"x")?)?;
    Ok(if is_set_user_id(&place.join("suid")) { Finding::escaped("it is") } else { Finding::contained("it is not") })
}

/// A name of four gigabytes, of which only the length is ever sent.
async fn endless_name(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(archive.len() + (4 << 20), b'x');
    let answer = unpack(stage, target, archive).await?;
    let found = crate::files_api::alive(stage, target, &format!("{answer:?}")).await?;
    Ok(if answer.is_ok() { Finding::escaped("it was taken") } else { found })
}

/// Each of its files is small, all of them are not.
fn bomb_archive() -> Outcome<Vec<u8>> {
    let mut archive = vec![];
    for number in 0..64 {
        entry(&mut archive, &format!("small-{number}"), EntryType::Regular, "", 0o644, &[b'x'; 64 << 10])?;
    }
    Ok(ended(archive))
}

async fn bomb(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answer = unpack(stage, target, bomb_archive()?).await?;
    Ok(match answer {
        Ok(count) => Finding::escaped(format!("{count} entries were taken")),
        Err(code) => Finding::contained(code),
    })
}

async fn trusted_bomb(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("tar")?;
    trust(&place, &bomb_archive()?)?;
    let count = std::fs::read_dir(&place)?.count();
    Ok(if count == 64 { Finding::escaped("64 entries were taken") } else { Finding::contained(count.to_string()) })
}
