//! Whatever a file worker is sent: frames are read or refused, and no archive reaches beyond its directory.

use std::{
    fs::File,
    io::{Read, Seek, Write},
    time::{Duration, Instant},
};

use bolero::check;

use super::{
    frames::{Inbox, Kind, header, parse_header},
    unpack,
};
use crate::{error::Fault, protocol::CHUNK};

#[path = "../../../../fuzz/archive.rs"]
mod archive;

/// Far more than any of these needs, even on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn fuzz_frame_header() {
    check!().with_type::<[u8; 5]>().cloned().for_each(|bytes| {
        if let Some((kind, length)) = parse_header(bytes) {
            assert_eq!(header(kind, length), bytes);
        }
    });
}

#[test]
fn fuzz_inbox() {
    check!().for_each(|bytes| {
        let Ok(pipe) = filled(bytes) else { panic!("no memory file") };
        let mut inbox = Inbox::new(pipe.into());
        let mut data = Vec::new();
        let ended = inbox.read_to_end(&mut data).is_ok();
        assert_eq!(inbox.was_aborted(), !ended);
        assert!(data.len() <= bytes.len());
    });
}

#[test]
fn fuzz_fault() {
    check!().for_each(|bytes| {
        if let Some(fault) = Fault::from_bytes(bytes) {
            assert_eq!(fault.to_bytes(), bytes);
        }
    });
}

#[test]
fn fuzz_unpack() {
    check!().with_max_len(512).for_each(|bytes| {
        let scene = archive::Scene::new().unwrap_or_else(|error| panic!("{error}"));
        let mut frames = Vec::new();
        for part in archive::archive(bytes, scene.outer.path()).chunks(CHUNK) {
            frames.extend_from_slice(&header(Kind::Data, part.len()));
            frames.extend_from_slice(part);
        }
        frames.extend_from_slice(&header(Kind::Commit, 0));
        let pipe = filled(&frames).unwrap_or_else(|error| panic!("{error}"));
        let start = Instant::now();
        let _either = unpack::tree(&scene.root, &mut Inbox::new(pipe.into()));
        assert!(start.elapsed() < LONGEST, "it took {:?}", start.elapsed());
        scene.assert_untouched().unwrap_or_else(|error| panic!("{error}"));
    });
}

/// A file that reads like the pipe these bytes came through.
fn filled(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("frames", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
