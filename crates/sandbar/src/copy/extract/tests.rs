//! Hostile archives against the extractor, each beside the honest one that shows the attack would be seen.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use tar::{Builder, Header};

use super::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Names and targets go in unchecked, as an attacker would write them.
fn entry(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, target: &str, data: &[u8]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o4755);
    header.set_mtime(1_000_000);
    header.set_size(data.len() as u64);
    header.set_cksum();
    archive.append(&header, data)
}

fn archive(entries: &[(EntryType, &str, &str)]) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, target) in entries {
        let data: &[u8] = if *kind == EntryType::Regular { b"content" } else { b"" };
        entry(&mut archive, *kind, name, target, data)?;
    }
    archive.into_inner()
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const DIRECTORY: EntryType = EntryType::Directory;

/// A directory to extract into, inside one whose other content must never change.
struct Scene {
    outer: tempfile::TempDir,
    root: PathBuf,
}

impl Scene {
    fn new() -> io::Result<Self> {
        let outer = tempfile::tempdir()?;
        fs::write(outer.path().join("secret"), "untouched")?;
        let root = outer.path().join("root");
        Ok(Self { outer, root })
    }

    fn extract(&self, entries: &[(EntryType, &str, &str)]) -> Result<Extracted, ExtractError> {
        extract(&archive(entries).map_err(ExtractError::Archive)?[..], &self.root, Repositories::Keep)
    }

    fn assert_untouched(&self) -> io::Result<()> {
        assert_eq!(fs::read_to_string(self.outer.path().join("secret"))?, "untouched");
        assert_eq!(fs::read_dir(self.outer.path())?.count(), 2, "something was made beside the root");
        Ok(())
    }
}

#[test]
fn a_repository_that_is_here_already_stays() -> Outcome {
    let evil = [
        (FILE, ".git/config", ""),
        (FILE, "src/code", ""),
        (FILE, ".git/hooks/pre-commit", ""),
        (FILE, "sub/.GIT/config", ""),
        (DIRECTORY, "file/.git", ""),
        (LINK, "worktree/.git", "elsewhere"),
        (FILE, "new/.git/config", ""),
        (FILE, "new/.git/HEAD", ""),
    ];
    let here = |scene: &Scene| -> io::Result<Vec<String>> {
        ["root/.git/config", "root/sub/.GIT/config", "root/file/.git", "root/worktree/.git"]
            .map(|path| fs::read_to_string(scene.outer.path().join(path)))
            .into_iter()
            .collect()
    };
    let scene = Scene::new()?;
    for directory in [".git", "sub/.GIT", "file", "worktree"] {
        fs::create_dir_all(scene.root.join(directory))?;
    }
    for path in [".git/config", "sub/.GIT/config", "file/.git", "worktree/.git"] {
        fs::write(scene.root.join(path), "ours")?;
    }
    let extracted = scene.extract(&evil)?;
    let left_out: Vec<_> = extracted.refused.iter().map(|refusal| refusal.name.as_str()).collect();
    assert_eq!((left_out, extracted.entries), (vec![".git", "sub/.GIT", "file/.git", "worktree/.git"], 3));
    assert_eq!(here(&scene)?, ["ours"; 4]);
    assert!(!scene.root.join(".git/hooks").exists(), "nor is anything added to it");
    for path in ["src/code", "new/.git/config", "new/.git/HEAD"] {
        assert_eq!(fs::read_to_string(scene.root.join(path))?, "content", "{path}");
    }
    // The control: without the guard the same archive overwrites it.
    let archive = archive(&evil[..3])?;
    assert_eq!(extract(&archive[..], &scene.root, Repositories::Overwrite)?, Extracted { entries: 3, refused: vec![] });
    assert_eq!(here(&scene)?[0], "content");
    Ok(())
}

#[test]
fn an_honest_tree_arrives() -> Outcome {
    let scene = Scene::new()?;
    let extracted = scene.extract(&[
        (DIRECTORY, "a", ""),
        (FILE, "a/file", ""),
        (FILE, "made/on/the/way", ""),
        (LINK, "a/up", "../made/on"),
        (LINK, "a/here", "file"),
        (FILE, "./.hidden", ""),
    ])?;
    assert_eq!(extracted, Extracted { entries: 6, refused: vec![] });
    assert_eq!(fs::read_to_string(scene.root.join("a/here"))?, "content");
    assert_eq!(fs::read_to_string(scene.root.join("a/up/the/way"))?, "content");
    let metadata = fs::metadata(scene.root.join("a/file"))?;
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o755, "no set-uid bit comes out of a sandbox");
    assert_eq!(metadata.mtime(), 1_000_000);
    scene.assert_untouched()?;
    Ok(())
}

#[test]
fn names_that_lead_outside_end_it() -> Outcome {
    for name in ["../secret", "/tmp/secret", "a/../../secret", "..", "a/..", "//x"] {
        let scene = Scene::new()?;
        let outcome = scene.extract(&[(FILE, name, "")]);
        assert!(matches!(outcome, Err(ExtractError::Outside(_))), "{name}: {outcome:?}");
        scene.assert_untouched()?;
    }
    Ok(())
}

#[test]
fn links_that_lead_outside_are_not_made() -> Outcome {
    for target in ["..", "../secret", "/etc/passwd", "a/../../secret", "up/../secret", "./../x", ""] {
        let scene = Scene::new()?;
        let extracted = scene.extract(&[(LINK, "link", target), (FILE, "after", "")])?;
        assert_eq!((extracted.entries, extracted.refused.len()), (1, 1), "{target}");
        assert!(fs::symlink_metadata(scene.root.join("link")).is_err(), "{target}");
        assert!(scene.root.join("after").exists());
    }
    let scene = Scene::new()?;
    assert_eq!(scene.extract(&[(LINK, "d/link", "../file")])?.refused, [], "the control");
    Ok(())
}

/// Each link alone stays inside by its letters; the second would climb out of where the first points.
#[test]
fn links_cannot_be_chained_outside() -> Outcome {
    let scene = Scene::new()?;
    let extracted = scene.extract(&[(LINK, "p/q/up", "../.."), (LINK, "p/q/out", "up/../secret")])?;
    assert_eq!(extracted.refused.iter().map(|refusal| refusal.name.as_str()).collect::<Vec<_>>(), ["p/q/out"]);
    symlink("up/../secret", scene.root.join("p/q/out"))?;
    assert_eq!(fs::read_to_string(scene.root.join("p/q/out"))?, "untouched", "the control: the kernel would follow it");
    Ok(())
}

#[test]
fn nothing_is_written_through_a_link() -> Outcome {
    let scene = Scene::new()?;
    // Made by the archive, and lying there before.
    let extracted = scene.extract(&[(LINK, "inner", "sub"), (FILE, "inner/file", ""), (FILE, "sub/x", "")])?;
    assert_eq!(extracted.refused.len(), 1);
    symlink(scene.outer.path(), scene.root.join("outer"))?;
    symlink(scene.outer.path().join("secret"), scene.root.join("file"))?;
    let extracted = scene.extract(&[(FILE, "outer/secret", ""), (DIRECTORY, "outer", ""), (FILE, "file", "")])?;
    assert_eq!((extracted.entries, extracted.refused.len()), (1, 2));
    assert!(fs::symlink_metadata(scene.root.join("file"))?.is_file(), "the link was replaced, not followed");
    scene.assert_untouched()?;
    fs::write(scene.root.join("outer/secret"), "content")?;
    assert_eq!(fs::read_to_string(scene.outer.path().join("secret"))?, "content", "the control: the link works");
    Ok(())
}

#[test]
fn devices_pipes_and_hard_links_are_not_made() -> Outcome {
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::Link, EntryType::new(b'Z')] {
        let scene = Scene::new()?;
        let extracted = scene.extract(&[(FILE, "file", ""), (kind, "odd", "file")])?;
        assert_eq!((extracted.entries, extracted.refused.len()), (1, 1), "{kind:?}");
        assert!(fs::symlink_metadata(scene.root.join("odd")).is_err(), "{kind:?}");
    }
    Ok(())
}

#[test]
fn what_the_sandbox_left_out_is_told() -> Outcome {
    let scene = Scene::new()?;
    let mut builder = Builder::new(Vec::new());
    let note = b"28 SANDBAR.skipped=../a\nb=c\n34 SANDBAR.skipped.why=Forbidden.\n";
    for note in [&note[..], b"22 comment=not of ours\n", b"99 x", b"0 ", b"", b"3 \n"] {
        entry(&mut builder, EntryType::XGlobalHeader, "pax_global_header", "", note)?;
    }
    entry(&mut builder, FILE, "file", "", b"content")?;
    let extracted = extract(&builder.into_inner()?[..], &scene.root, Repositories::Keep)?;
    let refusal = Refusal { name: "../a\nb=c".into(), why: "Forbidden.".into() };
    assert_eq!(extracted, Extracted { entries: 1, refused: vec![refusal] });
    scene.assert_untouched()?;
    Ok(())
}

#[test]
fn what_is_there_is_replaced_but_no_directory() -> Outcome {
    let scene = Scene::new()?;
    fs::create_dir_all(scene.root.join("directory/kept"))?;
    fs::write(scene.root.join("file"), "something longer than the content")?;
    let extracted = scene.extract(&[(FILE, "file", ""), (FILE, "directory", ""), (DIRECTORY, "file", "")])?;
    assert_eq!((extracted.entries, extracted.refused.len()), (1, 2));
    assert_eq!(fs::read_to_string(scene.root.join("file"))?, "content");
    assert!(scene.root.join("directory/kept").is_dir());
    Ok(())
}

/// A terabyte of zeros, then seven bytes.
#[test]
fn holes_stay_holes() -> Outcome {
    const HOLE: u64 = 1 << 40;
    let scene = Scene::new()?;
    let octal = |number: u64| format!("{number:011o}\0").into_bytes();
    let mut header = Header::new_gnu();
    header.set_path("holes")?;
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o640);
    header.set_mtime(1_000_000);
    header.set_size(7);
    let gnu = header.as_gnu_mut().ok_or("not a GNU header")?;
    // Too large for eleven digits: the binary form.
    gnu.sparse[0].offset[..4].copy_from_slice(&[0x80, 0, 0, 0]);
    gnu.sparse[0].offset[4..].copy_from_slice(&HOLE.to_be_bytes());
    gnu.sparse[0].numbytes.copy_from_slice(&octal(7));
    gnu.realsize[..4].copy_from_slice(&[0x80, 0, 0, 0]);
    gnu.realsize[4..].copy_from_slice(&(HOLE + 7).to_be_bytes());
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, &b"content"[..])?;
    let extracted = extract(&builder.into_inner()?[..], &scene.root, Repositories::Keep)?;
    assert_eq!(extracted, Extracted { entries: 1, refused: vec![] });
    let metadata = fs::metadata(scene.root.join("holes"))?;
    assert_eq!((metadata.len(), metadata.mode() & 0o7777, metadata.mtime()), (HOLE + 7, 0o640, 1_000_000));
    assert!(metadata.blocks() * 512 < 1 << 20, "{} bytes on disk", metadata.blocks() * 512);
    Ok(())
}

#[test]
fn a_broken_archive_is_an_error() -> Outcome {
    let scene = Scene::new()?;
    let mut bytes = archive(&[(FILE, "file", "")])?;
    bytes.truncate(515);
    assert!(extract(&bytes[..], &scene.root, Repositories::Keep).is_err());
    Ok(())
}
