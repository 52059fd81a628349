//! The worker's body against real directories, without a worker.

use std::{
    ffi::OsStr,
    fs::{self, File, FileTimes},
    io::{Read, Seek},
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
    time::{Duration, SystemTime},
};

use prost::Message;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, mknodat};

use super::*;
use crate::files::frames::{HEADER, parse_header};

type Outcome = Result<(), Box<dyn std::error::Error>>;

struct Found {
    hits: Vec<SearchHit>,
    end: SearchEnd,
}

impl Found {
    fn paths(&self) -> Vec<&str> {
        self.hits.iter().map(|hit| hit.path.as_str()).collect()
    }

    /// As grep prints them.
    fn lines(&self) -> Vec<String> {
        let line = |hit: &SearchHit| {
            let mark = if hit.context { '-' } else { ':' };
            format!("{}{mark}{}{mark}{}", hit.path, hit.line, String::from_utf8_lossy(&hit.text))
        };
        self.hits.iter().map(line).collect()
    }
}

fn search_within(limits: &Limits, path: &Path, request: &SearchRequest) -> Result<Found, Fault> {
    let broken = |error: std::io::Error| Fault::internal("test")(error);
    let mut pipe =
        File::from(rustix::fs::memfd_create("frames", MemfdFlags::CLOEXEC).map_err(|errno| broken(errno.into()))?);
    let mut outbox = Outbox::new(pipe.try_clone().map_err(broken)?.into());
    let outcome = within(limits, path, request, &mut outbox);
    outbox.finish(outcome.clone()).map_err(broken)?;
    outcome?;
    pipe.rewind().map_err(broken)?;
    let mut found = Found { hits: Vec::new(), end: SearchEnd::default() };
    let mut header = [0; HEADER];
    while pipe.read_exact(&mut header).is_ok() {
        let length = parse_header(header).map_or(0, |(_, length)| length);
        let mut payload = vec![0; length];
        pipe.read_exact(&mut payload).map_err(broken)?;
        match SearchReply::decode(payload.as_slice()).ok().and_then(|reply| reply.event) {
            Some(Event::Hit(hit)) => found.hits.push(hit),
            Some(Event::End(end)) => found.end = end,
            None => {}
        }
    }
    Ok(found)
}

fn search(path: &Path, request: &SearchRequest) -> Result<Found, Fault> {
    search_within(&LIMITS, path, request)
}

fn names(pattern: &str) -> SearchRequest {
    SearchRequest { names: pattern.into(), ..SearchRequest::default() }
}

fn lines(pattern: &str) -> SearchRequest {
    SearchRequest { pattern: Some(pattern.into()), ..SearchRequest::default() }
}

fn put(root: &Path, name: &str, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    let place = root.join(name);
    fs::create_dir_all(place.parent().unwrap_or(root))?;
    fs::write(place, text)
}

#[test]
fn names_come_newest_first_and_bounded() -> Outcome {
    let root = tempfile::tempdir()?;
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for (age, name) in ["old.rs", "a/middle.rs", "a/b/new.rs", "new.txt"].into_iter().enumerate() {
        put(root.path(), name, "x")?;
        let times = FileTimes::new().set_modified(start + Duration::from_secs(age.try_into()?));
        File::options().write(true).open(root.path().join(name))?.set_times(times)?;
    }
    let found = search(root.path(), &names("*.rs"))?;
    assert_eq!(found.paths(), ["a/b/new.rs", "a/middle.rs", "old.rs"]);
    assert_eq!((found.end.looked_at, found.end.more, found.end.unreadable), (6, false, 0));
    assert_eq!((found.hits[0].modified_ms, found.hits[0].size, found.hits[0].line), (1_000_002_000, 1, 0));
    let found = search(root.path(), &SearchRequest { most: 2, ..names("*.rs") })?;
    assert_eq!(found.paths(), ["a/b/new.rs", "a/middle.rs"]);
    assert!(found.end.more);
    assert_eq!(search(root.path(), &names("a"))?.hits[0].kind(), crate::protocol::EntryKind::Directory);
    assert_eq!(search(&root.path().join("new.txt"), &names(""))?.paths(), ["new.txt"]);
    assert_eq!(search(&root.path().join("new.txt"), &names("*.rs"))?.paths(), [""; 0]);
    Ok(())
}

#[test]
fn lines_come_in_the_order_of_paths_with_their_surroundings() -> Outcome {
    let root = tempfile::tempdir()?;
    put(root.path(), "b.txt", "one\ntwo hit\nthree\nfour\nfive HIT\nsix\r\nseven\r\n")?;
    put(root.path(), "a/z", "hit")?;
    put(root.path(), "a.txt", "\n\nhit\n")?;
    put(root.path(), "empty", "")?;
    let found = search(root.path(), &lines("hit"))?;
    assert_eq!(found.lines(), ["a/z:1:hit", "a.txt:3:hit", "b.txt:2:two hit"]);
    let around = SearchRequest { before: 1, after: 1, ignore_case: true, names: "b*".into(), ..lines("hit") };
    let found = search(root.path(), &around)?;
    let expected =
        ["b.txt-1-one", "b.txt:2:two hit", "b.txt-3-three", "b.txt-4-four", "b.txt:5:five HIT", "b.txt-6-six"];
    assert_eq!(found.lines(), expected);
    assert!(!found.end.more);
    // No line is told twice where surroundings meet.
    let found = search(root.path(), &SearchRequest { before: 50, after: 50, ..around.clone() })?;
    assert_eq!(found.hits.iter().map(|hit| hit.line).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    // After the last hit its surroundings are still told.
    let found = search(root.path(), &SearchRequest { most: 1, ..around })?;
    assert_eq!(found.lines(), ["b.txt-1-one", "b.txt:2:two hit", "b.txt-3-three"]);
    assert!(found.end.more);
    // A line end belongs to no line.
    let ends = SearchRequest { names: "b*".into(), ..lines("^(six|seven)$") };
    assert_eq!(search(root.path(), &ends)?.hits.len(), 2);
    assert_eq!(search(&root.path().join("a.txt"), &lines("^$"))?.lines(), ["a.txt:1:", "a.txt:2:"]);
    Ok(())
}

#[test]
fn what_is_not_plain_text_is_passed_over_or_counted() -> Outcome {
    let root = tempfile::tempdir()?;
    let outside = tempfile::tempdir()?;
    put(outside.path(), "secret", "hit")?;
    put(root.path(), "binary", b"hit\0")?;
    put(root.path(), "latin", b"hit \xe9\n")?;
    put(root.path(), ".hidden", "hit")?;
    put(root.path(), ".git/config", "hit")?;
    put(root.path(), "node_modules/x.js", "hit")?;
    put(root.path(), "large", "hit\n".repeat(100))?;
    symlink(outside.path(), root.path().join("out"))?;
    symlink(outside.path().join("secret"), root.path().join("out-file"))?;
    symlink(root.path(), root.path().join("loop"))?;
    mknodat(CWD, root.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0)?;
    put(root.path(), "odd", "hit")?;
    fs::rename(root.path().join("odd"), root.path().join(OsStr::from_bytes(b"odd\xff")))?;
    let limits = Limits { file: 100, ..LIMITS };
    let found = search_within(&limits, root.path(), &lines("hit"))?;
    assert_eq!(found.paths(), ["latin", "odd\u{fffd}"]);
    assert_eq!(found.hits[0].text.as_ref(), b"hit \xe9");
    assert_eq!((found.end.unreadable, found.end.more), (1, false), "the large one");
    let found = search(root.path(), &SearchRequest { all: true, ..lines("hit") })?;
    let paths: std::collections::BTreeSet<_> = found.paths().into_iter().collect();
    assert_eq!(
        paths.into_iter().collect::<Vec<_>>(),
        [".git/config", ".hidden", "large", "latin", "node_modules/x.js", "odd\u{fffd}"]
    );
    // Asked for by itself, whatever it is.
    assert_eq!(search(&root.path().join("binary"), &lines("hit"))?.hits.len(), 1);
    assert_eq!(search(&root.path().join(".git"), &lines("hit"))?.paths(), ["config"]);
    assert_eq!(search(&root.path().join("out"), &lines("hit"))?.paths(), ["secret"]);
    let refused = |path: &str| search_within(&limits, &root.path().join(path), &lines("hit")).err().map(|f| f.code);
    assert_eq!(refused("large"), Some(Code::TooLarge));
    assert_eq!(refused("pipe"), Some(Code::WrongFileKind));
    assert_eq!(refused("nothing"), Some(Code::UnknownFile));
    // Links are told by name.
    assert_eq!(search(root.path(), &names("out*"))?.hits[0].kind(), crate::protocol::EntryKind::Symlink);
    Ok(())
}

#[test]
fn long_lines_are_cut_between_characters() -> Outcome {
    let root = tempfile::tempdir()?;
    put(root.path(), "a", format!("{}é{}hit", "x".repeat(1999), "y".repeat(3000)))?;
    put(root.path(), "b", format!("{}hit", "x".repeat(1997)))?;
    let found = search(root.path(), &lines("hit"))?;
    assert_eq!(
        found.hits.iter().map(|hit| (hit.text.len(), hit.cut)).collect::<Vec<_>>(),
        [(1999, true), (2000, false)]
    );
    Ok(())
}

#[test]
fn every_limit_ends_it_and_is_told() -> Outcome {
    let root = tempfile::tempdir()?;
    for number in 0..20 {
        put(root.path(), &format!("d{number:02}/file"), "hit\nhit\n")?;
    }
    let count = |limits: &Limits, request: &SearchRequest| {
        search_within(limits, root.path(), request).map(|found| (found.hits.len(), found.end.more))
    };
    assert_eq!(count(&LIMITS, &lines("hit"))?, (40, false));
    assert_eq!(count(&LIMITS, &SearchRequest { most: 3, ..lines("hit") })?, (3, true));
    assert_eq!(count(&Limits { time: Duration::ZERO, ..LIMITS }, &lines("hit"))?, (0, true));
    assert_eq!(count(&Limits { answer: 750, ..LIMITS }, &lines("hit"))?, (10, true));
    assert_eq!(count(&Limits { answer: 150, ..LIMITS }, &names("file"))?, (2, true));
    assert_eq!(count(&Limits { entries: 30, ..LIMITS }, &lines("hit"))?, (20, true));
    let (hits, more) = count(&Limits { names: 10 * 67, ..LIMITS }, &lines("hit"))?;
    assert!((1..40).contains(&hits) && more, "{hits} {more}");
    Ok(())
}

#[test]
fn bad_expressions_are_refused_with_their_place() {
    let root = Path::new("/");
    let refused = |request: &SearchRequest| {
        search(root, request).err().map(|fault| (fault.code, fault.message)).unwrap_or((Code::Internal, String::new()))
    };
    let (code, message) = refused(&lines("ab(c"));
    assert_eq!(code, Code::BadRequest);
    assert_eq!(message, "The regular expression is wrong (at character 3): unclosed group.");
    for pattern in ["*", "(?<=a)b", "\\", "[z-a]", "a{1000}{1000}{10}", "(?i", "x\n(", "\u{1F600}("] {
        let (code, message) = refused(&lines(pattern));
        assert_eq!(code, Code::BadRequest, "{pattern}");
        assert!(message.starts_with("The regular expression is wrong") && !message.contains('\n'), "{message}");
    }
    assert_eq!(refused(&SearchRequest { before: 51, ..lines("a") }).0, Code::BadRequest);
    assert_eq!(refused(&lines(&"a".repeat(64 * 1024 + 1))).0, Code::BadRequest);
}

#[test]
fn a_directory_of_a_hundred_thousand_is_nothing_special() -> Outcome {
    let root = tempfile::tempdir()?;
    let directory = File::open(root.path())?;
    for number in 0..100_000 {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(&directory, format!("entry-{number:06}"), flags, Mode::RUSR)?;
    }
    let found = search(root.path(), &names("*"))?;
    assert_eq!((found.hits.len(), found.end.looked_at, found.end.more), (10_000, 100_000, true));
    fs::set_permissions(root.path().join("entry-099999"), fs::Permissions::from_mode(0o600))?;
    fs::write(root.path().join("entry-099999"), "hit")?;
    let found = search(root.path(), &lines("hit"))?;
    assert_eq!(found.paths(), ["entry-099999"]);
    assert_eq!((found.end.looked_at, found.end.more), (100_000, false));
    Ok(())
}

#[test]
fn a_tree_deeper_than_a_path_ends() -> Outcome {
    let root = tempfile::tempdir()?;
    let mut directory = rustix::fs::open(root.path(), rustix::fs::OFlags::RDONLY, Mode::empty())?;
    let name = "d".repeat(200);
    for _ in 0..30 {
        rustix::fs::mkdirat(&directory, &name, Mode::RWXU)?;
        directory = rustix::fs::openat(&directory, &name, rustix::fs::OFlags::RDONLY, Mode::empty())?;
    }
    let found = search(root.path(), &names("*"))?;
    assert_eq!((found.hits.len(), found.end.unreadable), (21, 1));
    drop(directory);
    Ok(fs::remove_dir_all(root.path())?)
}
