//! Trees as tar archives.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use bytes::Bytes;
use sandbar_guest::protocol::{PackRequest, SKIPPED, SKIPPED_WHY, UnpackOpen, UnpackRequest, unpack_request::Message};
use tar::{Builder, EntryType, Header};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of};

async fn pack(guest: &Guest, path: &str) -> Result<Vec<u8>, Status> {
    let request = PackRequest { path: guest.text_path(path) };
    let mut stream = guest.client.clone().pack(request).await?.into_inner();
    let mut archive = Vec::new();
    while let Some(part) = stream.message().await? {
        archive.extend_from_slice(&part.data);
    }
    Ok(archive)
}

async fn unpack(guest: &Guest, path: &str, archive: &[u8]) -> Result<u64, Status> {
    let message = |message| UnpackRequest { message: Some(message) };
    let mut messages = vec![message(Message::Open(UnpackOpen { path: guest.text_path(path) }))];
    messages.extend(archive.chunks(64 * 1024).map(|part| message(Message::Data(Bytes::copy_from_slice(part)))));
    messages.push(message(Message::Commit(true)));
    Ok(guest.client.clone().unpack(tokio_stream::iter(messages)).await?.into_inner().entries)
}

/// Everything that must survive, by path.
fn snapshot(root: &Path) -> Outcome<BTreeMap<String, String>> {
    let mut seen = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let content = if metadata.is_symlink() {
                fs::read_link(&path)?.display().to_string()
            } else if metadata.is_dir() {
                waiting.push(path.clone());
                "directory".into()
            } else {
                format!("{:?}", fs::read(&path)?)
            };
            let name = path.strip_prefix(root)?.display().to_string();
            seen.insert(name, format!("{:o} {} {content}", metadata.mode(), metadata.mtime()));
        }
    }
    Ok(seen)
}

pub(crate) async fn round_trip(guest: Guest) -> Outcome {
    let root = guest.path("tree");
    let deep = root.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep)?;
    fs::create_dir_all(root.join("empty"))?;
    fs::write(root.join("file"), vec![9; 200_000])?;
    fs::write(deep.join("long"), "x")?;
    fs::write(root.join("tool"), "#!")?;
    fs::set_permissions(root.join("tool"), fs::Permissions::from_mode(0o750))?;
    symlink("file", root.join("link"))?;
    symlink("/etc/passwd", root.join("outside"))?;
    symlink("nowhere", root.join("dangling"))?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )?;
    let mut sparse = fs::File::create(root.join("sparse"))?;
    sparse.set_len(1 << 30)?;
    sparse.write_all(b"start")?;
    let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000));
    fs::File::open(root.join("file"))?.set_times(old)?;
    fs::File::open(root.join("empty"))?.set_times(old)?;
    fs::create_dir(root.join("closed"))?;
    fs::write(root.join("closed/inside"), "in")?;
    fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o555))?;

    let archive = pack(&guest, "tree").await?;
    assert!(archive.len() < 1_000_000, "holes were packed: {}", archive.len());
    assert_eq!(unpack(&guest, "copy/below", &archive).await?, 12);
    fs::remove_file(root.join("pipe"))?;
    fs::remove_file(root.join("sparse"))?;
    let copy = fs::metadata(guest.path("copy/below/sparse"))?;
    assert!(copy.len() == 1 << 30 && copy.blocks() < 1000);
    fs::remove_file(guest.path("copy/below/sparse"))?;
    assert_eq!(snapshot(&root)?, snapshot(&guest.path("copy/below"))?);

    // So that an ordinary user can remove what the test leaves.
    for closed in [root.join("closed"), guest.path("copy/below/closed")] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o755))?;
    }

    let single = pack(&guest, "tree/link").await?;
    let mut archive = tar::Archive::new(&single[..]);
    let mut entries = archive.entries()?;
    let mut entry = entries.next().ok_or("no entry")??;
    let mut data = Vec::new();
    entry.read_to_end(&mut data)?;
    assert_eq!((entry.path()?.display().to_string().as_str(), data.len()), ("link", 200_000));
    // A second time over what is there.
    assert_eq!(unpack(&guest, "copy", &single).await?, 1);
    assert_eq!(unpack(&guest, "copy", &single).await?, 1);
    assert_eq!(code_of(pack(&guest, "nothing").await), "unknown_file");
    assert_eq!(code_of(pack(&guest, "guest.sock").await), "wrong_file_kind");
    Ok(())
}

/// A pax record's value and what follows it. By its length: names may have newlines, which the library's reader splits at.
fn record<'a>(data: &'a [u8], key: &str) -> Option<(String, &'a [u8])> {
    let space = data.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let (record, rest) = data.split_at_checked(length)?;
    let value = record[space + 1..].strip_prefix(key.as_bytes())?.strip_prefix(b"=")?.strip_suffix(b"\n")?;
    Some((String::from_utf8_lossy(value).into_owned(), rest))
}

/// A path and the reason.
type Skipped = (String, String);

/// The names of an archive, and what it says it left out.
fn told(archive: &[u8]) -> Outcome<(Vec<String>, Vec<Skipped>)> {
    let (mut names, mut skipped) = (Vec::new(), Vec::new());
    let mut ends_with_entry = false;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        ends_with_entry = entry.header().entry_type() != EntryType::XGlobalHeader;
        if ends_with_entry {
            names.push(entry.path()?.display().to_string());
            continue;
        }
        let mut data = Vec::new();
        entry.read_to_end(&mut data)?;
        let (what, rest) = record(&data, SKIPPED).ok_or("no path")?;
        let (why, rest) = record(rest, SKIPPED_WHY).ok_or("no reason")?;
        assert!(rest.is_empty());
        skipped.push((what, why));
    }
    assert!(ends_with_entry, "some readers take a global header at the end for a broken archive");
    Ok((names, skipped))
}

pub(crate) async fn tells_what_it_lacks(guest: Guest) -> Outcome {
    let root = guest.path("mixed");
    fs::create_dir_all(root.join("shut"))?;
    fs::write(root.join("shut/inside"), "")?;
    for name in ["after", "odd\nname", "secret"] {
        fs::write(root.join(name), name)?;
    }
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket"))?;
    for closed in ["odd\nname", "secret", "shut"] {
        fs::set_permissions(root.join(closed), fs::Permissions::from_mode(0o000))?;
    }
    let archive = pack(&guest, "mixed").await?;
    let (names, skipped) = told(&archive)?;
    assert_eq!(names, ["after", "shut"]);
    assert_eq!(
        skipped.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["odd\nname", "secret", "socket", "shut"]
    );
    assert!(skipped[1].1.contains("Permission denied"), "{skipped:?}");
    assert_eq!(skipped[2].1, "It is a socket.");
    assert_eq!(unpack(&guest, "again", &archive).await?, 2, "the entries that tell are no obstacle");

    // The very thing that was asked for is no part that may be missing.
    assert_eq!(code_of(pack(&guest, "mixed/secret").await), "file_forbidden");
    assert_eq!(code_of(pack(&guest, "mixed/shut").await), "file_forbidden");
    for shut in [root.join("shut"), guest.path("again/shut")] {
        fs::set_permissions(shut, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header
}

/// One entry under exactly this name, which the library's own setter would refuse.
fn raw(builder: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, link: &str, data: &[u8]) -> Outcome {
    let mut header = header(kind, data.len() as u64);
    let fields = header.as_old_mut();
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    builder.append(&header, data)?;
    Ok(())
}

pub(crate) async fn refuses_hostile_ones(guest: Guest) -> Outcome {
    let outside = guest.path("outside");
    fs::create_dir(&outside)?;
    let outside_text = outside.display().to_string();
    type Entries<'a> = &'a [(&'a str, EntryType, &'a str, &'a [u8])];
    let cases: [(&str, Entries<'_>); 7] = [
        ("parent", &[("../escaped", EntryType::Regular, "", b"x")]),
        ("absolute", &[("/tmp/sandbar-escaped", EntryType::Regular, "", b"x")]),
        ("pipe", &[("pipe", EntryType::Fifo, "", b"")]),
        ("device", &[("device", EntryType::Char, "", b"")]),
        (
            "through",
            &[("door", EntryType::Symlink, &outside_text, b""), ("door/escaped", EntryType::Regular, "", b"x")],
        ),
        (
            "directory",
            &[("door", EntryType::Symlink, &outside_text, b""), ("door/escaped/", EntryType::Directory, "", b"")],
        ),
        ("hard", &[("hard", EntryType::Link, "../guest.sock", b"")]),
    ];
    for (name, entries) in cases {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, link, data) in entries {
            raw(&mut builder, path, *kind, link, data)?;
        }
        let archive = builder.into_inner()?;
        assert_eq!(code_of(unpack(&guest, name, &archive).await), "bad_archive", "{name}");
    }
    assert!(!guest.path("escaped").exists() && !Path::new("/tmp/sandbar-escaped").exists());
    assert_eq!(fs::read_dir(&outside)?.count(), 0);

    // A link that was there before, made by whoever runs inside.
    fs::create_dir(guest.path("prepared"))?;
    symlink(&outside, guest.path("prepared/door"))?;
    let mut builder = Builder::new(Vec::new());
    raw(&mut builder, "door/escaped", EntryType::Regular, "", b"x")?;
    assert_eq!(code_of(unpack(&guest, "prepared", &builder.into_inner()?).await), "bad_archive");
    // A file in the place of a link replaces the link, not what it points to.
    let mut builder = Builder::new(Vec::new());
    raw(&mut builder, "door", EntryType::Regular, "", b"x")?;
    assert_eq!(unpack(&guest, "prepared", &builder.into_inner()?).await?, 1);
    assert!(fs::symlink_metadata(guest.path("prepared/door"))?.is_file());
    assert_eq!(fs::read_dir(&outside)?.count(), 0);
    Ok(())
}

pub(crate) async fn refuses_broken_ones(guest: Guest) -> Outcome {
    let mut builder = Builder::new(Vec::new());
    builder.append_data(&mut header(EntryType::Regular, 2000), "file", &[7; 2000][..])?;
    let whole = builder.into_inner()?;
    assert_eq!(unpack(&guest, "whole", &whole).await?, 1);
    for length in [0, 100, 512, 1500, 512 + 2048] {
        assert_eq!(code_of(unpack(&guest, "cut", &whole[..length]).await), "bad_archive", "{length}");
    }
    let noise = unpack(&guest, "noise", &[b'x'; 4096]).await;
    assert_eq!(noise.as_ref().err().map(Status::message), Some("This is not a tar archive."));
    assert_eq!(code_of(noise), "bad_archive");
    fs::write(guest.path("occupied"), "")?;
    assert_eq!(code_of(unpack(&guest, "occupied", &whole).await), "wrong_file_kind");
    Ok(())
}
