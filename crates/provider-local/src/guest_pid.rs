//! Which process is a sandbox's guest, in a way that survives the server: pid, start time and boot in a file, so that a
//! reused pid is never taken for it; and which directory it was started for, so that the guest of a home is never taken
//! for that of a copy of the home.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};

const FILE: &str = "guest.pid";

/// Called by the launcher before the guest may go on, so that there is never a guest without this file.
pub(crate) fn write(directory: impl AsFd, pid: i32) -> io::Result<()> {
    let line = format!("{pid} {} {} {}\n", start_time(pid)?, place(&directory)?, boot()?);
    let draft = "guest.pid.draft";
    let file = rustix::fs::openat(
        &directory,
        draft,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )?;
    io::Write::write_all(&mut fs::File::from(file), line.as_bytes())?;
    Ok(rustix::fs::renameat(&directory, draft, &directory, FILE)?)
}

/// A handle on the guest if it is alive.
pub(crate) fn find(directory: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let text = match rustix::fs::openat(&directory, FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => io::read_to_string(fs::File::from(file))?,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut words = text.split_whitespace();
    let (Some(pid), Some(started)) = (words.next().and_then(|word| word.parse().ok()), words.next()) else {
        return Ok(None);
    };
    // Versions before this one wrote two words.
    if let Some(written) = words.next()
        && (written != place(&directory)? || words.next() != Some(boot()?.as_str()))
    {
        return Ok(None);
    }
    let Some(handle) = Pid::from_raw(pid) else { return Ok(None) };
    let pidfd = match pidfd_open(handle, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        // EINVAL: the number now belongs to a thread that leads no process.
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Looked at after the handle was taken: if the start time still fits, the handle is on our guest.
    match start_time(pid) {
        Ok(now) if now == started => Ok(Some(pidfd)),
        _ => Ok(None),
    }
}

/// The guest's pid as this host counts, if it is alive.
pub(crate) fn number(directory: impl AsFd) -> io::Result<Option<i32>> {
    let Some(_alive) = find(&directory)? else { return Ok(None) };
    let file = rustix::fs::openat(&directory, FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(io::read_to_string(fs::File::from(file))?.split_whitespace().next().and_then(|word| word.parse().ok()))
}

pub(crate) fn forget(directory: impl AsFd) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, FILE, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// A directory as the kernel tells it from all others, which no copy of it shares.
fn place(directory: impl AsFd) -> io::Result<String> {
    let found = rustix::fs::fstat(directory)?;
    Ok(format!("{}:{}", found.st_dev, found.st_ino))
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Field 22 of `/proc/PID/stat`, counted after the name, which may hold anything. Zombies count as dead.
fn start_time(pid: i32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let mut fields = after.split_whitespace();
    if matches!(fields.next(), None | Some("Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    fields.nth(18).map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_found_and_a_reused_pid_is_not() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("sandbar-pid-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let directory = fs::File::open(&path)?;
        assert!(find(&directory)?.is_none());
        write(&directory, std::process::id() as i32)?;
        assert!(find(&directory)?.is_some());
        let written = fs::read_to_string(path.join(FILE))?;
        let words: Vec<_> = written.split_whitespace().collect();
        let write = |words: &[&str]| fs::write(path.join(FILE), words.join(" "));
        write(&[words[0], "1", words[2], words[3]])?;
        assert!(find(&directory)?.is_none(), "another process with that number");
        write(&[words[0], words[1], words[2], "another-boot"])?;
        assert!(find(&directory)?.is_none(), "another boot");
        write(&[words[0], words[1]])?;
        assert!(find(&directory)?.is_some(), "as an earlier version wrote it");
        let copy = path.join("copy");
        fs::create_dir_all(&copy)?;
        fs::write(copy.join(FILE), &written)?;
        assert!(find(fs::File::open(&copy)?)?.is_none(), "the guest belongs to what was copied");
        fs::write(path.join(FILE), &written)?;
        assert!(find(&directory)?.is_some());
        forget(&directory)?;
        forget(&directory)?;
        fs::remove_dir_all(path)
    }
}
