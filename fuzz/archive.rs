//! Tar archives as an attacker might write them, made of arbitrary bytes, and a scene that shows what they did. Shared by
//! the fuzz targets of both programs that unpack.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use tar::{EntryType, Header};

const KINDS: &[u8] = b"00000555522211377xgLKSSVZ\0";
const WORDS: &[&str] =
    &["a", "b", "a", "link", "file", "/", "/", "/", "..", ".", "", "secret", "outside", "kept", "\0", "\u{fc}"];
const MODES: &[u32] = &[0o755, 0o644, 0o777, 0, 0o4755, 0o300, 0o7777, u32::MAX];
const NUMBERS: &[u64] = &[0, 1, 511, 512, 513, 4096, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX];

/// Bytes in the order they come; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.next().is_multiple_of(many)
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.next() % items.len()]
    }

    /// A path that is sometimes absolute.
    fn path(&mut self, outer: &Path) -> Vec<u8> {
        let mut path = Vec::new();
        let choice = self.next();
        if choice.is_multiple_of(16) {
            path.extend_from_slice(outer.as_os_str().as_encoded_bytes());
        }
        for _ in 0..choice / 16 {
            path.extend_from_slice(self.of(WORDS).as_bytes());
        }
        path
    }
}

/// An archive with names that lead around in `outer`.
pub(crate) fn archive(bytes: &[u8], outer: &Path) -> Vec<u8> {
    let mut choices = Choices(bytes);
    let (style, mut archive) = (choices.next(), Vec::new());
    if style % 8 == 0 {
        return choices.0.to_vec();
    }
    while choices.0.len() > 16 {
        entry(&mut choices, outer, &mut archive);
    }
    // Some end as they should, some not at all.
    archive.resize(archive.len() + 512 * (style % 4), 0);
    // Some are broken afterwards; what is left of the choices says where.
    if style % 8 == 1 && !archive.is_empty() {
        while !choices.0.is_empty() {
            let place = (choices.next() * 256 + choices.next()) % archive.len();
            archive[place] = choices.next() as u8;
        }
    }
    archive
}

fn entry(choices: &mut Choices<'_>, outer: &Path, archive: &mut Vec<u8>) {
    let mut header = if choices.one_in(4) { Header::new_old() } else { Header::new_gnu() };
    let kind = choices.of(KINDS);
    let (name, target) = (choices.path(outer), choices.path(outer));
    let data = match kind {
        b'x' | b'g' => [record(b"path", &name), record(b"linkpath", &target), record(b"size", b"7")].concat(),
        b'L' | b'K' => name.clone(),
        _ => vec![b'd'; choices.of(&[0, 1, 512, 700])],
    };
    let (name, target) = (&name[..name.len().min(100)], &target[..target.len().min(100)]);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(choices.of(MODES));
    header.set_mtime(choices.of(NUMBERS));
    header.set_size(if choices.one_in(8) { choices.of(NUMBERS) } else { data.len() as u64 });
    if let (b'S', Some(gnu)) = (kind, header.as_gnu_mut()) {
        let hole = choices.of(NUMBERS);
        gnu.sparse[0].offset = octal(hole);
        gnu.sparse[0].numbytes = octal(data.len() as u64);
        gnu.realsize = octal(hole.saturating_add(data.len() as u64));
    }
    if !choices.one_in(16) {
        header.set_cksum();
    }
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(&data);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let length = key.len() + value.len() + 3;
    // The length counts its own digits.
    let digits = (1..20).find(|digits| (length + digits).to_string().len() == *digits).unwrap_or(1);
    [(length + digits).to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// The larger ones in the binary form that tar has for them.
fn octal(number: u64) -> [u8; 12] {
    let mut field = [0; 12];
    if number < 1 << 33 {
        field[..11].copy_from_slice(format!("{number:011o}").as_bytes());
    } else {
        field[0] = 0x80;
        field[4..].copy_from_slice(&number.to_be_bytes());
    }
    field
}

/// A directory to unpack into, with links that lead out of it, beside others that must never change.
pub(crate) struct Scene {
    pub(crate) outer: tempfile::TempDir,
    pub(crate) root: PathBuf,
    before: Vec<String>,
}

impl Scene {
    pub(crate) fn new() -> io::Result<Self> {
        let outer = tempfile::tempdir()?;
        let root = outer.path().join("root");
        fs::write(outer.path().join("secret"), "untouched")?;
        fs::create_dir_all(outer.path().join("outside"))?;
        fs::write(outer.path().join("outside/kept"), "untouched")?;
        fs::create_dir_all(root.join("a"))?;
        symlink("../outside", root.join("link"))?;
        symlink(outer.path().join("secret"), root.join("file"))?;
        let before = outside(outer.path())?;
        Ok(Self { outer, root, before })
    }

    pub(crate) fn assert_untouched(&self) -> io::Result<()> {
        assert_eq!(outside(self.outer.path())?, self.before);
        Ok(())
    }
}

impl Drop for Scene {
    /// Directories that nobody may enter would be left lying around.
    fn drop(&mut self) {
        let mut waiting = vec![self.root.clone()];
        while let Some(directory) = waiting.pop() {
            let _ = fs::set_permissions(&directory, fs::Permissions::from_mode(0o700));
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            waiting.extend(
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
            );
        }
    }
}

/// Everything that a change outside the root would show in.
fn outside(outer: &Path) -> io::Result<Vec<String>> {
    let mut seen = Vec::new();
    for place in [outer.to_path_buf(), outer.join("outside")] {
        for entry in fs::read_dir(place)? {
            let path = entry?.path();
            let found = fs::symlink_metadata(&path)?;
            if !path.ends_with("root") {
                let content = if found.is_file() { fs::read_to_string(&path)? } else { String::new() };
                let links = if found.is_file() { found.nlink() } else { 0 };
                seen.push(format!("{path:?} {:o} {} {links} {} {content}", found.mode(), found.uid(), found.mtime()));
            }
        }
    }
    seen.sort();
    Ok(seen)
}
