//! The sandbox's own name in its list of hosts, so that programs find the machine they run on. In memory, but where root
//! inside may keep lines of its own.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
};

use rustix::fs::{FileType, Mode, OFlags};

const PLACE: &str = "/etc/hosts";
/// By which the line is found when the name changes.
const OURS: &str = "# this sandbox";
/// A longer one is somebody's own, and left alone.
const LONGEST: u64 = 64 * 1024;

/// Writes it down instead of the one before. What a sandbox has put in the place of the file (a link, a pipe, a device) is
/// left as it is.
pub fn name_host(hostname: &str) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(PLACE, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let mut file = File::from(file);
    let mut text = Vec::new();
    (&mut file).take(LONGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Ok(());
    }
    let named = named(&text, hostname);
    if named != text {
        file.write_all_at(&named, 0)?;
        file.set_len(named.len() as u64)?;
    }
    Ok(())
}

/// Servers that listen at their own name are then reached where everybody looks for them.
fn named(text: &[u8], hostname: &str) -> Vec<u8> {
    let kept =
        text.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_end().ends_with(OURS.as_bytes()));
    let mut named: Vec<u8> = kept.flatten().copied().collect();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !hostname.is_empty() && hostname.bytes().all(is_name) {
        if named.last().is_some_and(|last| *last != b'\n') {
            named.push(b'\n');
        }
        named.extend_from_slice(format!("127.0.0.1\t{hostname}\t{OURS}\n").as_bytes());
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_name_has_one_line_and_the_others_stay() {
        let first = named(b"127.0.0.1 localhost\n10.0.0.1 mine", "pool-1");
        let text = "127.0.0.1 localhost\n10.0.0.1 mine\n127.0.0.1\tpool-1\t# this sandbox\n";
        assert_eq!(String::from_utf8_lossy(&first), text);
        assert_eq!(named(&first, "pool-1"), first);
        let later = named(&first, "claimed");
        assert_eq!(String::from_utf8_lossy(&later), text.replace("pool-1", "claimed"));
        assert_eq!(named(b"", "one"), b"127.0.0.1\tone\t# this sandbox\n");
        for wrong in ["", "a b", "a\n10.0.0.1 b", "a#"] {
            assert_eq!(named(b"", wrong), b"", "{wrong:?}");
        }
    }
}
