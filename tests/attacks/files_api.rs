//! The files API as the way out: it acts for the host, on paths that a sandbox has prepared.

use std::{io::Cursor, path::Path, time::Duration};

use futures_util::TryStreamExt as _;
use sandbar_client::Error;

use crate::{
    attack::{
        Attack, Class,
        Control::{self, Template},
        Finding, act,
    },
    files::is_set_user_id,
    stage::{SECRET, Stage, Target},
    support::Outcome,
};

/// What a sandbox's own answer takes; one that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Files, name, act, control);
    let host = |act| Control::Act("on the host", act);
    vec![
        doing("download_by_dots", act!(by_dots), host(act!(host_reads))),
        doing("download_by_a_link", act!(by_link), host(act!(host_reads_link))),
        doing("download_by_magic_links", act!(by_magic), host(act!(host_reads_magic))),
        doing("download_of_the_workers_descriptors", act!(descriptors), host(act!(host_descriptors))),
        doing("upload_to_the_workers_descriptors", act!(upload_descriptors), host(act!(host_descriptors))),
        doing("upload_by_a_linked_directory", act!(upload_by_link), host(act!(host_writes_link))),
        doing("upload_to_etc", act!(upload_to_etc), Control::Act("to /tmp", act!(upload_to_tmp))),
        doing("upload_of_a_set_user_id_file", act!(upload_set_user_id), host(act!(host_set_user_id))),
        doing("pipe_in_a_download", act!(pipe_download), host(act!(host_waits))),
        doing("pipe_in_an_upload", act!(pipe_upload), host(act!(host_waits))),
        doing("pipe_in_a_packed_tree", act!(pipe_packed), host(act!(host_waits))),
        doing("device_in_a_download", act!(device), host(act!(host_device))),
        doing("file_larger_than_allowed", act!(larger), Template("profile = \"standard\"\n"))
            .with("max_file = 1048576\n"),
        doing("sparse_file_of_a_terabyte", act!(sparse), host(act!(host_sparse))),
    ]
}

/// The bytes of a download, or the code it was refused with. At most `limit` are taken.
pub(crate) async fn download(
    stage: &Stage,
    target: &Target,
    path: &str,
    limit: usize,
) -> Outcome<Result<Vec<u8>, String>> {
    let reading = async {
        let download = stage.client.download(&target.id, path, 0).await?;
        let mut bytes = Box::pin(download.bytes);
        let mut got = vec![];
        while got.len() < limit
            && let Some(piece) = bytes.try_next().await?
        {
            got.extend_from_slice(&piece);
        }
        Ok(got)
    };
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(Ok(got)) => Ok(Ok(got)),
        Ok(Err(error)) => refusal(error).map(Err),
        Err(_) => Err(format!("the download of {path} hangs").into()),
    }
}

pub(crate) fn refusal(error: Error) -> Outcome<String> {
    match error {
        Error::Problem(problem) => Ok(problem.code.as_str().to_owned()),
        Error::Foreign { status, .. } => Ok(status.to_string()),
        // An answer that broke off gave nothing more.
        Error::Transport { .. } => Ok("the connection was closed".into()),
        other => Err(other.into()),
    }
}

pub(crate) async fn upload(
    stage: &Stage,
    target: &Target,
    path: &str,
    mode: Option<u32>,
    body: Vec<u8>,
) -> Outcome<Result<(), String>> {
    let sending = stage.client.upload(&target.id, path, mode, Cursor::new(body));
    match tokio::time::timeout(PATIENCE, sending).await {
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(error)) => refusal(error).map(Err),
        Err(_) => Err(format!("the upload to {path} hangs").into()),
    }
}

/// Downloads every path; the first that has the host's secret is an escape.
async fn none_is_secret(stage: &Stage, target: &Target, paths: &[String]) -> Outcome<Finding> {
    let mut how = vec![];
    for path in paths {
        match download(stage, target, path, 1 << 20).await? {
            Ok(got) if got.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) => {
                return Ok(Finding::escaped(format!("{path} is the host's")));
            }
            Ok(_) => how.push("its own".to_owned()),
            Err(code) => how.push(code),
        }
    }
    how.dedup();
    Ok(Finding::contained(how.join(", ")))
}

async fn by_dots(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let secret = stage.secret();
    let secret = secret.to_string_lossy();
    let paths = ["/..", "../../../..", "/workspace/../../..", "/proc/self/cwd/../..", "/tmp/./../../.."]
        .map(|up| format!("{up}{secret}"));
    // The client refuses some of them itself, so the server is also asked without it.
    for way in ["/../../..", "/%2e%2e/%2e%2e", "/workspace/..%2f..%2f.."] {
        let answer = stage.raw("GET", &format!("/v1/sandboxes/{}/files{way}{secret}", target.id))?;
        if answer.contains(SECRET) {
            return Ok(Finding::escaped(format!("{way} is the host's")));
        }
    }
    none_is_secret(stage, target, &paths).await
}

async fn by_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = format!(
        "ln -sfn {secret} /workspace/leads; ln -sfn / /workspace/root; ln -sfn /proc/1/root /workspace/first",
        secret = stage.secret().display()
    );
    stage.sh(target, &script).await?;
    let paths = [
        "/workspace/leads".into(),
        format!("/workspace/root{}", stage.secret().display()),
        format!("/workspace/first{}", stage.secret().display()),
    ];
    none_is_secret(stage, target, &paths).await
}

async fn by_magic(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let roots = ["/proc/self/root", "/proc/1/root", "/proc/1/cwd", "/proc/thread-self/root", "/proc/self/task/1/root"];
    let paths = roots.map(|root| format!("{root}{}", stage.secret().display()));
    none_is_secret(stage, target, &paths).await
}

/// A worker has two pipes to the guest; whoever reads or writes them speaks for it.
async fn descriptors(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for number in 3..32 {
        if let Ok(got) = download(stage, target, &format!("/proc/self/fd/{number}"), 1 << 16).await?
            && !got.is_empty()
        {
            return Ok(Finding::escaped(format!("descriptor {number} gave {} bytes", got.len())));
        }
    }
    for file in ["/proc/self/environ", "/proc/1/environ", "/proc/1/mem"] {
        if let Ok(got) = download(stage, target, file, 1 << 16).await?
            && !got.is_empty()
        {
            return Ok(Finding::escaped(format!("{file} says {}", String::from_utf8_lossy(&got))));
        }
    }
    alive(stage, target, "nothing of the worker's can be read").await
}

async fn upload_descriptors(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for number in 0..32 {
        // Frames of the worker's own protocol, for the case that they arrive.
        let forged = [&[3_u8, 8, 0, 0, 0][..], &[0xff; 8]].concat();
        if upload(stage, target, &format!("/proc/self/fd/{number}"), None, forged).await?.is_ok() {
            return Ok(Finding::escaped(format!("descriptor {number} was written")));
        }
    }
    alive(stage, target, "nothing of the worker's can be written").await
}

pub(crate) async fn alive(stage: &Stage, target: &Target, how: &str) -> Outcome<Finding> {
    let ran = stage.sh(target, "echo alive").await?;
    Ok(if ran.stdout == "alive\n" { Finding::contained(how) } else { Finding::escaped("the guest no longer answers") })
}

async fn upload_by_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let outside = stage.directory("outside")?;
    stage.sh(target, &format!("ln -sfn {} /workspace/outside", outside.display())).await?;
    let answer = upload(stage, target, "/workspace/outside/file", None, b"x".to_vec()).await?;
    Ok(if outside.join("file").exists() {
        Finding::escaped("written to the host")
    } else {
        Finding::contained(format!("{answer:?}"))
    })
}

async fn upload_to_etc(stage: &Stage, target: &Target) -> Outcome<Finding> {
    upload_into(stage, target, &["/etc/passwd", "/etc/ld.so.preload", "/usr/bin/true", "/proc/sys/kernel/core_pattern"])
        .await
}

async fn upload_to_tmp(stage: &Stage, target: &Target) -> Outcome<Finding> {
    upload_into(stage, target, &["/tmp/x"]).await
}

async fn upload_into(stage: &Stage, target: &Target, paths: &[&str]) -> Outcome<Finding> {
    let mut how = vec![];
    for path in paths {
        match upload(stage, target, path, None, b"x".to_vec()).await? {
            Ok(()) => return Ok(Finding::escaped(format!("{path} was written"))),
            Err(code) => how.push(code),
        }
    }
    how.dedup();
    Ok(Finding::contained(how.join(", ")))
}

async fn upload_set_user_id(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answer = upload(stage, target, "/workspace/suid", Some(0o4755), b"x".to_vec()).await?;
    Ok(if is_set_user_id(&target.shared.join("suid")) {
        Finding::escaped("it is set-user-id on the host")
    } else {
        Finding::contained(format!("{answer:?}"))
    })
}

async fn pipe_download(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.sh(target, "rm -f pipe; mkfifo pipe").await?;
    Ok(match download(stage, target, "/workspace/pipe", 1).await? {
        Ok(_) => Finding::escaped("it was opened"),
        Err(code) => Finding::contained(code),
    })
}

/// Replacing it is fine; waiting for a reader of it is not.
async fn pipe_upload(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.sh(target, "rm -f pipe; mkfifo pipe").await?;
    Ok(match upload(stage, target, "/workspace/pipe", None, b"x".to_vec()).await? {
        Ok(()) => Finding::contained("it was replaced"),
        Err(code) => Finding::contained(code),
    })
}

async fn pipe_packed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.sh(target, "mkdir -p packed; rm -f packed/*; mkfifo packed/pipe; echo x > packed/file").await?;
    let packing = async {
        let pieces = stage.client.pack(&target.id, "/workspace/packed").await?;
        pieces.try_fold(0, async |sum, piece| Ok(sum + piece.len())).await
    };
    let packed = tokio::time::timeout(PATIENCE, packing).await.map_err(|_| "packing hangs")??;
    Ok(Finding::contained(format!("{packed} bytes, the pipe left out")))
}

async fn device(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut how = vec![];
    for path in ["/dev/zero", "/dev/urandom", "/dev/tty", "/dev/ptmx"] {
        match download(stage, target, path, 1 << 20).await? {
            Ok(got) if !got.is_empty() => return Ok(Finding::escaped(format!("{path} gave {} bytes", got.len()))),
            Ok(_) => how.push("nothing".to_owned()),
            Err(code) => how.push(code),
        }
    }
    how.dedup();
    Ok(Finding::contained(how.join(", ")))
}

async fn larger(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answer = upload(stage, target, "/workspace/large", None, vec![b'x'; 2 << 20]).await?;
    let left = std::fs::read_dir(&target.shared)?
        .flatten()
        .any(|entry| entry.metadata().is_ok_and(|found| found.len() == 2 << 20));
    Ok(match answer {
        Ok(()) => Finding::escaped("it was taken"),
        Err(_) if left => Finding::escaped("it was left there"),
        Err(code) => Finding::contained(code),
    })
}

/// Its archive must not be as long as it says it is.
async fn sparse(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let place =
        stage.sh(target, "rm -rf /tmp/holes; mkdir /tmp/holes; truncate -s 1T /tmp/holes/big && echo made").await?;
    if place.stdout != "made\n" {
        return Ok(Finding::contained(place.stderr.trim()));
    }
    let packing = async {
        let pieces = stage.client.pack(&target.id, "/tmp/holes").await?;
        pieces.try_fold(0, async |sum, piece| Ok(sum + piece.len())).await
    };
    let packed = tokio::time::timeout(PATIENCE, packing).await.map_err(|_| "packing a hole takes for ever")??;
    Ok(if packed > 1 << 20 {
        Finding::escaped(format!("{packed} bytes"))
    } else {
        Finding::contained(format!("{packed} bytes"))
    })
}

fn read(path: &Path) -> Finding {
    match std::fs::read_to_string(path) {
        Ok(text) if text.contains(SECRET) => Finding::escaped(format!("{} was read", path.display())),
        other => Finding::contained(format!("{other:?}")),
    }
}

async fn host_reads(stage: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(read(&target.shared.join("../../../../../../../..").join(stage.secret().strip_prefix("/")?)))
}

async fn host_reads_link(_: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(read(&target.shared.join("leads")))
}

async fn host_reads_magic(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(read(&Path::new("/proc/self/root").join(stage.secret().strip_prefix("/")?)))
}

/// What a process that trusts such a path reads and writes: its own descriptors.
async fn host_descriptors(stage: &Stage, _: &Target) -> Outcome<Finding> {
    use std::os::fd::AsRawFd as _;
    let open = std::fs::File::open(stage.secret())?;
    Ok(read(&Path::new("/proc/self/fd").join(open.as_raw_fd().to_string())))
}

async fn host_writes_link(_: &Stage, target: &Target) -> Outcome<Finding> {
    std::fs::write(target.shared.join("outside/file"), "x")?;
    Ok(Finding::escaped("the link was followed"))
}

async fn host_set_user_id(stage: &Stage, _: &Target) -> Outcome<Finding> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = stage.directory("suid")?.join("file");
    std::fs::write(&path, "x")?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755))?;
    Ok(if is_set_user_id(&path) { Finding::escaped("set-user-id") } else { Finding::contained("not set-user-id") })
}

async fn host_waits(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("pipe")?;
    let ran =
        std::process::Command::new("sh").args(["-c", "mkfifo p && timeout 0.2 cat p"]).current_dir(place).status()?;
    Ok(if ran.code() == Some(124) { Finding::escaped("a reader hangs") } else { Finding::contained(ran.to_string()) })
}

async fn host_device(_: &Stage, _: &Target) -> Outcome<Finding> {
    use std::io::Read as _;
    let mut bytes = [1; 64];
    std::fs::File::open("/dev/zero")?.read_exact(&mut bytes)?;
    Ok(Finding::escaped("it never ends"))
}

async fn host_sparse(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("sparse")?;
    let script = "truncate -s 64M big && tar -cf - big | wc -c";
    let ran = std::process::Command::new("sh").args(["-c", script]).current_dir(place).output()?;
    let length: u64 = String::from_utf8_lossy(&ran.stdout).trim().parse()?;
    Ok(if length >= 64 << 20 {
        Finding::escaped(format!("plain tar made {length} bytes of 64 MiB of nothing"))
    } else {
        Finding::contained(length.to_string())
    })
}
