//! Single files and directories.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use bytes::Bytes;
use sandbar_guest::protocol::{
    Entry, EntryKind, ListDirectoryRequest, ReadFileRequest, RemoveRequest, StatRequest, WriteFileOpen,
    WriteFileRequest, write_file_request::Message,
};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of, until};

fn message(message: Message) -> WriteFileRequest {
    WriteFileRequest { message: Some(message) }
}

pub(crate) async fn write(guest: &Guest, path: &str, data: &[u8], mode: Option<u32>) -> Result<u64, Status> {
    let open = WriteFileOpen { path: guest.text_path(path), mode };
    let mut messages = vec![message(Message::Open(open))];
    messages.extend(data.chunks(64 * 1024).map(|part| message(Message::Data(Bytes::copy_from_slice(part)))));
    messages.push(message(Message::Commit(true)));
    let reply = guest.client.clone().write_file(tokio_stream::iter(messages)).await?;
    Ok(reply.into_inner().size)
}

async fn read(guest: &Guest, path: &str, offset: u64, length: Option<u64>) -> Result<(Entry, Vec<u8>), Status> {
    let request = ReadFileRequest { path: guest.text_path(path), offset, length };
    let mut stream = guest.client.clone().read_file(request).await?.into_inner();
    let first = stream.message().await?.and_then(|first| first.entry);
    let entry = first.ok_or_else(|| Status::internal("the first message has no entry"))?;
    let mut data = Vec::new();
    while let Some(part) = stream.message().await? {
        assert!(part.entry.is_none() && part.data.len() <= 64 * 1024);
        data.extend_from_slice(&part.data);
    }
    Ok((entry, data))
}

async fn list(guest: &Guest, path: &str) -> Result<Vec<Entry>, Status> {
    let request = ListDirectoryRequest { path: guest.text_path(path) };
    let mut stream = guest.client.clone().list_directory(request).await?.into_inner();
    let mut entries = Vec::new();
    while let Some(entry) = stream.message().await? {
        entries.push(entry);
    }
    Ok(entries)
}

async fn stat(guest: &Guest, path: &str) -> Result<Entry, Status> {
    Ok(guest.client.clone().stat(StatRequest { path: guest.text_path(path) }).await?.into_inner())
}

async fn remove(guest: &Guest, path: &str, recursive: bool) -> Result<(), Status> {
    let request = RemoveRequest { path: guest.text_path(path), recursive };
    guest.client.clone().remove(request).await.map(|_| ())
}

fn mode(guest: &Guest, path: &str) -> Outcome<u32> {
    Ok(fs::metadata(guest.path(path))?.permissions().mode() & 0o7777)
}

pub(crate) async fn round_trip_and_range(guest: Guest) -> Outcome {
    let data: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(write(&guest, "new/deep/file", &data, None).await?, data.len() as u64);
    assert_eq!((mode(&guest, "new/deep/file")?, mode(&guest, "new")?), (0o644, 0o755));
    let (entry, back) = read(&guest, "new/deep/file", 0, None).await?;
    assert!(back == data);
    assert_eq!((entry.name.as_str(), entry.size, entry.kind()), ("file", data.len() as u64, EntryKind::File));
    let (_, part) = read(&guest, "new/deep/file", 100_001, Some(300_000)).await?;
    assert!(part == data[100_001..400_001]);
    let (_, tail) = read(&guest, "new/deep/file", data.len() as u64 - 3, Some(1000)).await?;
    assert_eq!(tail, data[data.len() - 3..]);
    assert_eq!(read(&guest, "new/deep/file", data.len() as u64, None).await?.1, b"");
    assert_eq!(code_of(read(&guest, "new/deep/file", data.len() as u64 + 1, None).await), "offset_beyond");
    assert_eq!(write(&guest, "empty", b"", None).await?, 0);
    assert_eq!(read(&guest, "empty", 0, None).await?.1, b"");
    Ok(())
}

pub(crate) async fn broken_upload_changes_nothing(guest: Guest) -> Outcome {
    fs::write(guest.path("file"), "old")?;
    fs::create_dir(guest.path("sub"))?;
    let names = || -> Vec<String> {
        let entries = fs::read_dir(guest.directory.path()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let drafts = || names().iter().any(|name| name.starts_with(".sandbar-"));
    let open = || message(Message::Open(WriteFileOpen { path: guest.text_path("file"), mode: None }));
    let data = || message(Message::Data(Bytes::from_static(b"half")));

    let ended = guest.client.clone().write_file(tokio_stream::iter(vec![open(), data()])).await;
    assert_eq!(code_of(ended), "bad_request");
    let opened_twice = guest.client.clone().write_file(tokio_stream::iter(vec![open(), data(), open()])).await;
    assert_eq!(code_of(opened_twice), "bad_request");
    assert_eq!(fs::read_to_string(guest.path("file"))?, "old");
    until("the drafts to go", || !drafts()).await?;

    // The caller vanishes in the middle.
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    sender.send(open()).await?;
    sender.send(data()).await?;
    let mut client = guest.connect().await?;
    let call =
        tokio::spawn(async move { client.write_file(tokio_stream::wrappers::ReceiverStream::new(receiver)).await });
    until("the draft", drafts).await?;
    call.abort();
    until("the draft to go", || !drafts()).await?;
    assert_eq!(fs::read_to_string(guest.path("file"))?, "old");
    Ok(())
}

pub(crate) async fn writes_keep_modes_and_links(guest: Guest) -> Outcome {
    fs::write(guest.path("tool"), "old")?;
    fs::set_permissions(guest.path("tool"), fs::Permissions::from_mode(0o750))?;
    symlink("tool", guest.path("link"))?;
    symlink("not/yet", guest.path("dangling"))?;
    symlink("loop", guest.path("loop"))?;
    write(&guest, "link", b"new", None).await?;
    assert_eq!((fs::read(guest.path("tool"))?, mode(&guest, "tool")?), (b"new".to_vec(), 0o750));
    assert!(fs::symlink_metadata(guest.path("link"))?.is_symlink());
    write(&guest, "tool", b"newer", Some(0o4600)).await?;
    assert_eq!(mode(&guest, "tool")?, 0o600, "an upload is never set-user-id");
    write(&guest, "dangling", b"there", None).await?;
    assert_eq!(fs::read(guest.path("not/yet"))?, b"there");
    assert_eq!(code_of(write(&guest, "loop", b"x", None).await), "bad_path");
    assert_eq!(code_of(write(&guest, "tool/below", b"x", None).await), "wrong_file_kind");
    assert_eq!(code_of(write(&guest, ".", b"x", None).await), "wrong_file_kind");
    Ok(())
}

pub(crate) async fn writes_only_what_the_workload_may_write(guest: Guest) -> Outcome {
    fs::write(guest.path("read-only"), "old")?;
    fs::set_permissions(guest.path("read-only"), fs::Permissions::from_mode(0o444))?;
    symlink("read-only", guest.path("link"))?;
    for (path, mode) in [("read-only", None), ("read-only", Some(0o644)), ("link", None)] {
        assert_eq!(code_of(write(&guest, path, b"new", mode).await), "file_forbidden", "{path}");
    }
    assert_eq!((fs::read(guest.path("read-only"))?, mode(&guest, "read-only")?), (b"old".to_vec(), 0o444));
    // A new one may be made read-only, and is then.
    write(&guest, "sealed", b"once", Some(0o400)).await?;
    assert_eq!(code_of(write(&guest, "sealed", b"twice", None).await), "file_forbidden");
    let names: Vec<_> = list(&guest, ".").await?.into_iter().map(|entry| entry.name).collect();
    assert!(!names.iter().any(|name| name.starts_with(".sandbar-")), "{names:?}");
    Ok(())
}

pub(crate) async fn overwrites_what_has_other_names(guest: Guest) -> Outcome {
    fs::write(guest.path("one"), "an old text")?;
    fs::set_permissions(guest.path("one"), fs::Permissions::from_mode(0o640))?;
    fs::hard_link(guest.path("one"), guest.path("other"))?;
    let inode = |path: &str| fs::metadata(guest.path(path)).map(|file| (file.ino(), file.nlink()));
    let before = inode("one")?;
    let long = vec![7; 300_000];
    for data in [b"new".as_slice(), &long, b""] {
        write(&guest, "other", data, None).await?;
        assert_eq!((fs::read(guest.path("one"))? == data, inode("one")?, mode(&guest, "one")?), (true, before, 0o640));
    }
    write(&guest, "one", b"mode", Some(0o4600)).await?;
    assert_eq!((fs::read(guest.path("other"))?, mode(&guest, "other")?), (b"mode".to_vec(), 0o600));
    // Not before all of it is there.
    let open = message(Message::Open(WriteFileOpen { path: guest.text_path("one"), mode: Some(0o777) }));
    let half = message(Message::Data(Bytes::from_static(b"half")));
    assert_eq!(code_of(guest.client.clone().write_file(tokio_stream::iter(vec![open, half])).await), "bad_request");
    assert_eq!((fs::read(guest.path("other"))?, mode(&guest, "other")?), (b"mode".to_vec(), 0o600));
    Ok(())
}

pub(crate) async fn refuses_what_is_not_a_file(guest: Guest) -> Outcome {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        guest.path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )?;
    fs::create_dir(guest.path("directory"))?;
    for path in ["pipe", "guest.sock", "directory"] {
        assert_eq!(code_of(read(&guest, path, 0, None).await), "wrong_file_kind", "{path}");
        assert_eq!(code_of(write(&guest, path, b"x", None).await), "wrong_file_kind", "{path}");
    }
    let device = ReadFileRequest { path: "/dev/zero".into(), offset: 0, length: Some(1) };
    assert_eq!(code_of(guest.client.clone().read_file(device).await), "wrong_file_kind");
    assert_eq!(code_of(read(&guest, "nothing", 0, None).await), "unknown_file");
    assert_eq!(code_of(guest.client.clone().stat(StatRequest { path: "relative".into() }).await), "bad_path");
    assert_eq!(code_of(guest.client.clone().stat(StatRequest { path: "/a\0b".into() }).await), "bad_path");
    let long = guest.client.clone().stat(StatRequest { path: format!("/{}", "x".repeat(300)) }).await;
    assert_eq!(code_of(long), "bad_path");
    Ok(())
}

pub(crate) async fn lists_and_stats(guest: Guest) -> Outcome {
    fs::create_dir_all(guest.path("tree/b-dir"))?;
    fs::write(guest.path("tree/a-file"), "12345")?;
    symlink("a-file", guest.path("tree/c-link"))?;
    let entries = list(&guest, "tree").await?;
    let shown: Vec<_> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.kind(), entry.target.as_str())).collect();
    assert_eq!(
        shown,
        [
            ("a-file", EntryKind::File, ""),
            ("b-dir", EntryKind::Directory, ""),
            ("c-link", EntryKind::Symlink, "a-file")
        ]
    );
    assert_eq!((entries[0].size, entries[0].mode & 0o600), (5, 0o600));
    assert!(entries[0].modified_ms > 1_600_000_000_000);
    let followed = stat(&guest, "tree/c-link").await?;
    assert_eq!((followed.name.as_str(), followed.kind(), followed.size), ("c-link", EntryKind::File, 5));
    assert_eq!(list(&guest, "tree/b-dir").await?, []);
    assert_eq!(code_of(list(&guest, "tree/a-file").await), "wrong_file_kind");
    assert_eq!(code_of(list(&guest, "nothing").await), "unknown_file");
    for name in 0..3000 {
        fs::write(guest.path("tree/b-dir").join(format!("{name:05}")), "")?;
    }
    let names: Vec<String> = list(&guest, "tree/b-dir").await?.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, (0..3000).map(|name| format!("{name:05}")).collect::<Vec<_>>());
    Ok(())
}

pub(crate) async fn removes(guest: Guest) -> Outcome {
    fs::create_dir_all(guest.path("tree/sub"))?;
    fs::create_dir(guest.path("kept"))?;
    fs::write(guest.path("kept/file"), "")?;
    symlink("../../kept", guest.path("tree/sub/link"))?;
    assert_eq!(code_of(remove(&guest, "tree", false).await), "directory_not_empty");
    remove(&guest, "tree", true).await?;
    assert!(!guest.path("tree").exists() && guest.path("kept/file").exists());
    remove(&guest, "kept/file", false).await?;
    remove(&guest, "kept", false).await?;
    assert_eq!(code_of(remove(&guest, "kept", true).await), "unknown_file");
    for path in ["/", "//", "/."] {
        let request = RemoveRequest { path: path.into(), recursive: false };
        assert_eq!(code_of(guest.client.clone().remove(request).await), "directory_not_empty", "{path}");
    }
    Ok(())
}

pub(crate) async fn cancelled_calls_leave_no_worker(guest: Guest) -> Outcome {
    fs::File::create(guest.path("huge"))?.set_len(1 << 40)?;
    let request = ReadFileRequest { path: guest.text_path("huge"), offset: 0, length: None };
    let mut stream = guest.client.clone().read_file(request).await?.into_inner();
    stream.message().await?;
    assert_eq!(guest.children().len(), 1);
    drop(stream);
    until("the worker to end", || guest.children().is_empty()).await
}

pub(crate) async fn stopped_workers_go_on_or_are_given_up(guest: Guest) -> Outcome {
    let stop = || -> Outcome<bool> {
        let workers = guest.children();
        for worker in &workers {
            let pid = rustix::process::Pid::from_raw(i32::try_from(*worker)?).ok_or("no pid")?;
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        }
        Ok(!workers.is_empty())
    };
    let begin = async |name: &str| -> Outcome<_> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        sender.send(message(Message::Open(WriteFileOpen { path: guest.text_path(name), mode: None }))).await?;
        let mut client = guest.client.clone();
        let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let call = tokio::spawn(async move { client.write_file(requests).await });
        until("the worker", || !guest.children().is_empty()).await?;
        Ok((sender, call))
    };
    let (sender, call) = begin("once").await?;
    assert!(stop()?);
    sender.send(message(Message::Data(Bytes::from_static(b"text")))).await?;
    sender.send(message(Message::Commit(true))).await?;
    assert_eq!(call.await??.into_inner().size, 4);
    until("the worker to end", || guest.children().is_empty()).await?;

    let (_sender, call) = begin("always").await?;
    while stop()? {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(code_of(call.await?), "guest_unreachable");
    Ok(())
}
