//! Files and trees between this machine and a sandbox, after the rules of `cp -r`: into what is a directory, else under
//! that name.

mod extract;
mod holes;
mod pack;
mod place;
mod repository;

use std::{
    io,
    path::{Path, PathBuf},
};

use futures_util::StreamExt as _;
use sandbar_api::Code;
use sandbar_client::{Client, FileInfo};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;

pub(crate) use extract::Refusal;
pub(crate) use place::{Place, place};
pub(crate) use repository::Repositories;

use crate::{
    exit::{self, Failure},
    print::{Printer, written},
};
use extract::Extracted;
use holes::WithHoles;
use place::{contents_only, last_name};

/// How many entries were copied, and which were not.
#[derive(Debug, Serialize)]
pub(crate) struct Copied {
    #[serde(rename = "copied")]
    pub entries: u64,
    pub skipped: Vec<Refusal>,
}

impl Copied {
    fn all(entries: u64) -> Self {
        Self { entries, skipped: Vec::new() }
    }

    /// Tells what was left out, one warning each.
    fn told(self, print: Printer) -> Self {
        for Refusal { name, why } in &self.skipped {
            print.warn(format!("left out `{name}`: {}", why.trim_end_matches('.')));
        }
        self
    }
}

/// Copies the content of a local directory into a directory of a sandbox, which is made if need be.
pub(crate) async fn upload_tree(
    client: &Client,
    sandbox: &str,
    into: &str,
    directory: &Path,
    print: Printer,
) -> Result<Copied, Failure> {
    let (archive, packing) = pack::stream(directory.to_owned());
    let sent = client.unpack(sandbox, into, archive).await;
    let skipped = packing.await.map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let entries = sent.map_err(|error| match error {
        sandbar_client::Error::Read(cause) => Failure::new(exit::FAILED, cause.to_string()),
        error => error.into(),
    })?;
    let skipped = skipped
        .unwrap_or_default()
        .into_iter()
        .map(|path| Refusal { name: path.display().to_string(), why: "it is neither file, directory nor link".into() });
    Ok(Copied { entries, skipped: skipped.collect() }.told(print))
}

pub(crate) async fn upload(
    client: &Client,
    from: &Path,
    sandbox: &str,
    to: &str,
    print: Printer,
) -> Result<Copied, Failure> {
    let metadata = std::fs::metadata(from).map_err(cannot_read(from))?;
    let wants_directory = to.ends_with('/');
    let to = &sandbar_api::check::path(to)?;
    let target = remote(client, sandbox, to).await?;
    if metadata.is_dir() {
        let into = match (target, last_name(from)) {
            (Some(FileInfo::File { .. }), _) => return Err(in_the_way(to)),
            (Some(FileInfo::Directory), Some(name)) => format!("{to}/{}", text(&name)?),
            _ => to.to_owned(),
        };
        return upload_tree(client, sandbox, &into, from, print).await;
    }
    let name = || from.file_name().map(|name| text(name)).transpose();
    let to = match target {
        Some(FileInfo::Directory) => format!("{to}/{}", name()?.unwrap_or_default()),
        None if wants_directory => return Err(no_directory(to).hint(NO_SLASH)),
        Some(FileInfo::File { .. }) if wants_directory => return Err(no_directory_but_file(to)),
        _ => to.to_owned(),
    };
    let file = tokio::fs::File::open(from).await.map_err(cannot_read(from))?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    client.upload(sandbox, &to, Some(mode), file).await?;
    Ok(Copied::all(1))
}

/// Standard input as a file.
pub(crate) async fn upload_stdin(client: &Client, sandbox: &str, to: &str) -> Result<Copied, Failure> {
    client.upload(sandbox, to, None, tokio::io::stdin()).await?;
    Ok(Copied::all(1))
}

pub(crate) async fn download(
    client: &Client,
    sandbox: &str,
    from: &str,
    to: &Path,
    repositories: Repositories,
    print: Printer,
) -> Result<Copied, Failure> {
    let ours = std::fs::metadata(to).ok();
    let into_directory = ours.as_ref().is_some_and(std::fs::Metadata::is_dir);
    // The last name is of what the caller typed, never of what the sandbox says.
    let normal = PathBuf::from(sandbar_api::check::path(from)?);
    match client.stat(sandbox, from).await? {
        FileInfo::Directory => {
            let name = if contents_only(from) { None } else { normal.file_name() };
            let root = match name {
                _ if ours.is_some() && !into_directory => return Err(in_the_way(&to.display().to_string())),
                Some(name) if into_directory => to.join(name),
                _ => to.to_owned(),
            };
            repositories.check(&root)?;
            if let Some(there) = repositories.kept_in(&root)
                && remote(client, sandbox, &format!("{}/{}", normal.display(), repository::GIT)).await?.is_some()
            {
                return Err(repository::kept(&there));
            }
            download_tree(client, sandbox, from, &root, repositories, print).await
        }
        FileInfo::File { .. } => {
            let to = match normal.file_name() {
                Some(name) if into_directory => to.join(name),
                _ if to.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                    return Err(no_directory(&to.display().to_string()).hint(NO_SLASH));
                }
                _ => to.to_owned(),
            };
            repositories.check(&to)?;
            download_file(client, sandbox, from, &to).await
        }
    }
}

/// A file to standard output.
pub(crate) async fn download_stdout(client: &Client, sandbox: &str, from: &str) -> Result<Copied, Failure> {
    let mut download = client.download(sandbox, from, 0).await.map_err(|error| match error.code() {
        Some(Code::WrongFileKind) => Failure::from(error)
            .hint(format!("Copy it to a directory here, or use `sandbar exec {sandbox} -- tar c PATH`.")),
        _ => error.into(),
    })?;
    let mut stdout = tokio::io::stdout();
    while let Some(bytes) = download.bytes.next().await {
        written(stdout.write_all(&bytes?).await)?;
    }
    written(stdout.flush().await)?;
    Ok(Copied::all(1))
}

async fn download_tree(
    client: &Client,
    sandbox: &str,
    from: &str,
    root: &Path,
    repositories: Repositories,
    print: Printer,
) -> Result<Copied, Failure> {
    let archive = client.pack(sandbox, from).await?;
    let Extracted { entries, refused } = extract::stream(archive, root.to_owned(), repositories).await?;
    Ok(Copied { entries, skipped: refused }.told(print))
}

/// Beside its place first, so that a broken connection leaves what was there. What is no file, like a pipe or
/// /dev/null, is written into instead.
async fn download_file(client: &Client, sandbox: &str, from: &str, to: &Path) -> Result<Copied, Failure> {
    let cannot = || Failure::io(format!("`{}` cannot be written", to.display()));
    let target = to.canonicalize().unwrap_or_else(|_| to.to_owned());
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(no_directory(&directory.display().to_string()));
    }
    let mut download = client.download(sandbox, from, 0).await?;
    if std::fs::metadata(&target).is_ok_and(|metadata| !metadata.is_file()) {
        let mut file = tokio::fs::OpenOptions::new().write(true).open(&target).await.map_err(cannot())?;
        while let Some(bytes) = download.bytes.next().await {
            file.write_all(&bytes?).await.map_err(cannot())?;
        }
        file.flush().await.map_err(cannot())?;
        return Ok(Copied::all(1));
    }
    let temporary = tempfile::Builder::new().prefix(".sandbar-").tempfile_in(directory);
    // Without the temporary name, which tells nobody anything.
    let temporary = temporary.map_err(|error| cannot()(error.kind().into()))?;
    let (file, path) = temporary.into_parts();
    let mut file = WithHoles::new(tokio::fs::File::from_std(file));
    while let Some(bytes) = download.bytes.next().await {
        file.write(&bytes?).await.map_err(cannot())?;
    }
    let file = file.finish().await.map_err(cannot())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(download.mode & 0o777);
    file.set_permissions(mode).await.map_err(cannot())?;
    path.persist(&target).map_err(|error| cannot()(error.error))?;
    Ok(Copied::all(1))
}

/// What is at a path of the sandbox; `None` when nothing is.
async fn remote(client: &Client, sandbox: &str, path: &str) -> Result<Option<FileInfo>, Failure> {
    match client.stat(sandbox, path).await {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.code() == Some(Code::UnknownFile) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn text(name: &std::ffi::OsStr) -> Result<&str, Failure> {
    name.to_str().ok_or_else(|| {
        Failure::usage(format!("the name `{}` is not UTF-8", name.display()))
            .hint("Give the whole destination, with a name that is.")
    })
}

fn cannot_read(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let code = if path.exists() { exit::FAILED } else { exit::NOT_FOUND };
    let shown = path.display().to_string();
    move |error| Failure::new(code, format!("`{shown}` cannot be read: {error}"))
}

fn in_the_way(path: &str) -> Failure {
    Failure::new(exit::CONFLICT, format!("`{path}` is a file; a directory cannot be copied there"))
        .hint("Remove it, or choose another destination.")
}

const NO_SLASH: &str = "Make it first, or leave the last slash out to copy under that name.";

fn no_directory(path: &str) -> Failure {
    Failure::new(exit::NOT_FOUND, format!("there is no directory `{path}`")).hint("Make it first.")
}

fn no_directory_but_file(path: &str) -> Failure {
    Failure::new(exit::CONFLICT, format!("`{path}` is a file, not a directory"))
        .hint("Leave the last slash out to replace it.")
}
