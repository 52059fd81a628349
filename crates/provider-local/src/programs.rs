//! The host's programs, and the harmless directories of its `/etc`, as a sandbox sees them: each through a read-only
//! overlay of the sandbox's own. A bind would share the host's inodes: inotify inside would show which programs the host
//! starts, and a lock that is taken inside would hold up the host's.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::fs::{FileType, Mode, OFlags};
use sandbar_api::User;

use crate::{
    base, idmap,
    mount::{self, read_only, stack},
    sys::{self, Reach},
    uids::Uids,
};

/// Of mounts below them, each of which is a mount of every sandbox's too.
const MOST: usize = 128;

/// A directory of the host, or a file that is a mount of its own, and where it is seen, relative to the root.
pub(crate) struct Program {
    pub place: String,
    pub tree: OwnedFd,
}

/// Taken by root's launcher, for which no mount hides what lies under it.
pub(crate) fn take(user: User) -> io::Result<Vec<Program>> {
    found(user, |tree| idmap::detached(tree, None))
}

/// Found by a guest that has its launcher's uid, in its own copy of the host's mounts.
pub(crate) fn find(user: User) -> io::Result<Vec<Program>> {
    found(user, Ok)
}

fn found(user: User, of: impl Fn(OwnedFd) -> io::Result<OwnedFd>) -> io::Result<Vec<Program>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let directories = shown(user);
    let below = below(&directories, &mounts);
    if below.len() > MOST {
        return Err(io::Error::other(format!("there are more than {MOST} mounts below /usr and /etc")));
    }
    let program = |place: &String| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::open(Path::new("/").join(place), flags, Mode::empty())?;
        Ok(Program { place: place.clone(), tree: of(opened)? })
    };
    let mut programs = directories.iter().map(program).collect::<io::Result<Vec<_>>>()?;
    // One that is gone by now, or that not even root may enter, is not shown.
    programs.extend(below.iter().filter_map(|place| program(place).ok()));
    Ok(programs)
}

/// The directories of this host.
fn shown(user: User) -> Vec<String> {
    // Root inside has a /usr that it may change.
    let mut shown: Vec<String> = if user == User::Root { vec![] } else { vec!["usr".into()] };
    let links = base::USR_LINKS.iter().map(|name| (*name).to_owned());
    let links = links.filter(|name| fs::symlink_metadata(Path::new("/").join(name)).is_ok_and(|found| found.is_dir()));
    shown.extend(links);
    let bound = base::BOUND.iter().map(|name| format!("etc/{name}"));
    shown.extend(bound.filter(|name| Path::new("/").join(name).is_dir()));
    shown
}

/// What is mounted below them, parents first.
fn below(shown: &[String], mountinfo: &str) -> Vec<String> {
    let is_below = |place: &String| shown.iter().any(|above| is_below(place, above));
    let mounted = |line: &str| Some(unescaped(line.split(' ').nth(4)?.strip_prefix('/')?));
    let mut below: Vec<String> = mountinfo.lines().filter_map(mounted).filter(is_below).collect();
    below.sort();
    below.dedup();
    below
}

fn is_below(place: &str, above: &str) -> bool {
    place.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// The kernel writes blanks, newlines and backslashes of a name as a backslash and three octal digits.
fn unescaped(name: &str) -> String {
    let mut parts = name.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[3..]);
            }
            None => text.push_str(part),
        }
    }
    text
}

/// What is to be attached at each place. `empty` is an empty directory.
pub(crate) fn overlays(programs: Vec<Program>, uids: Uids, empty: &str) -> io::Result<Vec<(OwnedFd, String)>> {
    let mut made: Vec<(OwnedFd, String)> = Vec::new();
    let mut whole: Vec<String> = Vec::new();
    let places: Vec<String> = programs.iter().map(|program| program.place.clone()).collect();
    for Program { place, tree } in programs {
        if whole.iter().any(|above| is_below(&place, above)) {
            continue;
        }
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&tree)?.st_mode);
        if kind != FileType::Directory {
            // No overlay can have it as its root.
            if let Uids::Range(_) = uids {
                sys::mount_setattr(&tree, libc::MOUNT_ATTR_RDONLY, Reach::Alone, None)?;
                made.push((tree, place));
            }
            continue;
        }
        if let Uids::Range(_) = uids {
            stack(&tree)?;
        }
        let lowers = format!("/proc/self/fd/{}:{empty}", tree.as_raw_fd());
        match mount::read_only_overlay(&lowers) {
            Ok(overlay) => made.push((overlay, place)),
            // The kernel keeps a user namespace from looking under mounts that it did not make: with something mounted
            // below, all of it can be had only as it is. The report says so.
            Err(error)
                if matches!(uids, Uids::One { .. })
                    && error.raw_os_error() == Some(libc::EINVAL)
                    && places.iter().any(|other| is_below(other, &place)) =>
            {
                made.push((read_only(Path::new("/").join(&place))?, place.clone()));
                whole.push(place);
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("/{place}: {error}"))),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
21 1 253:0 / / rw,relatime - ext4 /dev/vda rw
22 21 253:1 / /usr rw - ext4 /dev/vdb rw
23 22 253:2 / /usr/local rw - ext4 /dev/vdc rw
24 23 253:3 / /usr/local/a\\040b\\134c rw - ext4 /dev/vdd rw
25 21 253:4 / /usr-local rw - ext4 /dev/vde rw
26 21 0:20 / /etc/fonts/conf.d rw - tmpfs tmpfs rw
27 21 0:21 / /etc/private rw - tmpfs tmpfs rw
28 23 253:2 / /usr/local rw - ext4 /dev/vdc rw
";

    #[test]
    fn what_is_mounted_below_is_shown_after_what_it_is_below() {
        let shown = ["usr", "etc/fonts"].map(str::to_owned);
        assert_eq!(below(&shown, MOUNTINFO), ["etc/fonts/conf.d", "usr/local", "usr/local/a b\\c"]);
        assert_eq!(below(&shown[1..], MOUNTINFO), ["etc/fonts/conf.d"], "root inside has a /usr of its own");
    }
}
