//! Whatever archive a sandbox sends: nothing beside the directory changes, and it does not take for ever.

use std::time::{Duration, Instant};

use bolero::check;

use super::{Repositories, extract, parts, skipped, stays_inside};

#[path = "../../../../../fuzz/archive.rs"]
mod archive;

/// Far more than any of these needs, even on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn fuzz_extract() {
    check!().with_max_len(512).for_each(|bytes| {
        let scene = archive::Scene::new().unwrap_or_else(|error| panic!("{error}"));
        let archive = archive::archive(bytes, scene.outer.path());
        let start = Instant::now();
        let _either = extract(&archive[..], &scene.root, Repositories::Keep);
        assert!(start.elapsed() < LONGEST, "it took {:?}", start.elapsed());
        scene.assert_untouched().unwrap_or_else(|error| panic!("{error}"));
    });
}

#[test]
fn fuzz_names() {
    const WORDS: [&str; 8] = ["/", "/", "a", "..", ".", "\0", "ü", ""];
    check!().with_max_len(16).for_each(|bytes| {
        let text: Vec<u8> = bytes.iter().flat_map(|byte| WORDS[usize::from(*byte) % WORDS.len()].bytes()).collect();
        if let Some(parts) = parts(&text) {
            let odd = |part: &std::ffi::OsString| part == ".." || part == "." || part.is_empty();
            assert!(!parts.iter().any(odd), "{parts:?}");
        }
        // Followed by its letters alone, a link never gets above the root.
        if stays_inside(&text, 2) {
            let mut depth = 2;
            for part in text.split(|byte| *byte == b'/') {
                match part {
                    b"" | b"." => {}
                    b".." => depth -= 1,
                    _ => depth += 1,
                }
                assert!(depth >= 0, "{}", text.escape_ascii());
            }
        }
        skipped(bytes);
        skipped(&text);
    });
}
