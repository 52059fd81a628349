//! Directories of more names than are held at once, without a worker.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _},
};

use prost::Message as _;
use rustix::fs::MemfdFlags;

use super::*;
use crate::files::frames::{HEADER, Kind, parse_header};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const MANY: usize = 1000;

fn ask(root: &Path, path: &str, ask: Ask) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut pipe = File::from(rustix::fs::memfd_create("frames", MemfdFlags::CLOEXEC)?);
    let (mut inbox, mut outbox) = (Inbox::new(File::open("/dev/null")?.into()), Outbox::new(pipe.try_clone()?.into()));
    let below = Below { root: root.to_owned(), path: path.into(), ask };
    let outcome = carry_out(&below, &mut inbox, &mut outbox);
    outbox.finish(outcome.clone())?;
    outcome.map_err(|fault| fault.message)?;
    pipe.rewind()?;
    let (mut names, mut header) = (Vec::new(), [0; HEADER]);
    while pipe.read_exact(&mut header).is_ok() {
        let (kind, length) = parse_header(header).ok_or("no header")?;
        let mut payload = vec![0; length];
        pipe.read_exact(&mut payload)?;
        if kind == Kind::Entry {
            names.push(Entry::decode(payload.as_slice())?.name);
        }
    }
    Ok(names)
}

fn fill(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    (0..MANY).try_for_each(|number| File::create(directory.join(format!("f{number:04}"))).map(drop))
}

#[test]
fn all_names_are_told_and_removed_though_not_at_once() -> Outcome {
    assert!(MANY * size_of::<OsString>() > 2 * HELD, "they are held at once");
    let root = tempfile::tempdir()?;
    let root = root.path();
    fill(&root.join("d/e"))?;
    let mut names = ask(root, "d/e", Ask::Read(Part::Whole))?;
    // Before them comes the directory itself.
    assert_eq!((names.remove(0).as_str(), names.len()), ("", MANY));
    assert!(!names.is_sorted(), "what is held at once is in order, not more");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), MANY);
    ask(root, "d", Ask::Remove { recursive: true })?;
    assert!(!root.join("d").exists());
    fill(root)?;
    ask(root, "", Ask::Remove { recursive: true })?;
    assert_eq!(fs::read_dir(root)?.count(), 0);
    Ok(())
}
