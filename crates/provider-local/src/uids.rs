//! Which users a sandbox has. Root gives each sandbox a range of its own, so that two sandboxes never share a uid,
//! even on disk; an ordinary user has only the one uid it has.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use sandbar_provider::Error;
use serde::{Deserialize, Serialize};

/// Inside: the workload's user and group. The guest is 0 where there is a range.
pub(crate) const WORKLOAD: u32 = 1000;
pub(crate) const WIDTH: u32 = 65_536;
/// Above what /etc/subuid and systemd hand out to users and containers (they stay below 0x7000_0000), and below what
/// systemd has from 0x7FFE_0000 on. Earlier versions went past that: tools print ids above 2³¹ as negative numbers.
const FIRST: u32 = 0x7000_0000;
const END: u32 = 0x7FFE_0000;
const SLOTS: u32 = (END - FIRST) / WIDTH;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Uids {
    /// 65,536 uids and gids from this one on.
    Range(u32),
    /// The server's own, seen inside as the workload's.
    One { uid: u32, gid: u32 },
}

impl Uids {
    pub(crate) fn uid_map(self) -> String {
        match self {
            Self::Range(base) => format!("0 {base} {WIDTH}\n"),
            Self::One { uid, .. } => format!("{WORKLOAD} {uid} 1\n"),
        }
    }

    pub(crate) fn gid_map(self) -> String {
        match self {
            Self::Range(base) => format!("0 {base} {WIDTH}\n"),
            Self::One { gid, .. } => format!("{WORKLOAD} {gid} 1\n"),
        }
    }

    /// Of files that belong to the sandbox's root, as the host sees them; `None`: they already are.
    pub(crate) fn root_on_host(self) -> Option<u32> {
        match self {
            Self::Range(base) => Some(base),
            Self::One { .. } => None,
        }
    }

    pub(crate) fn workload_on_host(self) -> Option<u32> {
        self.root_on_host().map(|base| base + WORKLOAD)
    }
}

/// Hands out ranges, one host-wide register for all servers, so that two homes never meet on one uid.
#[derive(Debug)]
pub(crate) struct Register {
    directory: Option<PathBuf>,
}

impl Register {
    /// Root with all uids at its command registers ranges; anybody else has one uid.
    pub(crate) fn open() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() || !maps_everything() {
            return Ok(Self { directory: None });
        }
        Self::at(Path::new("/run/sandbar"))
    }

    /// For root alone: whoever can open the lock can hold it, and no sandbox would start.
    fn at(place: &Path) -> Result<Self, Error> {
        let directory = place.join("uids");
        let made =
            fs::create_dir_all(&directory).and_then(|()| fs::set_permissions(place, fs::Permissions::from_mode(0o700)));
        made.map_err(Error::io(format!("create {}", directory.display())))?;
        Ok(Self { directory: Some(directory) })
    }

    pub(crate) fn has_ranges(&self) -> bool {
        self.directory.is_some()
    }

    /// Takes a free range for the sandbox whose files are in `owner`.
    pub(crate) fn take(&self, owner: &Path) -> Result<Uids, Error> {
        let Some(directory) = &self.directory else {
            return Ok(Uids::One {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            });
        };
        let _lock = self.lock()?;
        let mut bytes = [0; 4];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::io("get randomness")(errno.into()))?;
        let start = u32::from_le_bytes(bytes) % SLOTS;
        for slot in (0..SLOTS).map(|offset| (start + offset) % SLOTS) {
            if claim(&directory.join(slot.to_string()), owner).map_err(Error::io("register a uid range"))? {
                return Ok(Uids::Range(FIRST + slot * WIDTH));
            }
        }
        Err(Error::NoRoom {
            cause: format!("all {SLOTS} uid ranges of this host are in use"),
            fix: "Delete sandboxes and snapshots that are no longer needed; /run/sandbar/uids tells who has which."
                .into(),
        })
    }

    /// Registers again what a sandbox already has: after a reboot the register is empty. `false` if somebody else has
    /// taken the range since.
    pub(crate) fn keep(&self, uids: Uids, owner: &Path) -> Result<bool, Error> {
        let Some(file) = self.file(uids) else { return Ok(true) };
        let _lock = self.lock()?;
        claim(&file, owner).map_err(Error::io("register a uid range"))
    }

    /// Frees a range if its holder is `owner`, or lies in it: somebody else may have it by now.
    pub(crate) fn release(&self, uids: Uids, owner: &Path) -> Result<(), Error> {
        let Some(file) = self.file(uids) else { return Ok(()) };
        let _lock = self.lock()?;
        match fs::read_link(&file) {
            Ok(holder) if holder.starts_with(owner) => fs::remove_file(&file).map_err(Error::io("release a uid range")),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("release a uid range")(error)),
            _ => Ok(()),
        }
    }

    /// Passes a range on from `gone` to `heir`, whose files carry it too.
    pub(crate) fn pass(&self, uids: Uids, gone: &Path, heir: &Path) -> Result<(), Error> {
        let Some(file) = self.file(uids) else { return Ok(()) };
        let failed = || Error::io("pass a uid range on");
        let _lock = self.lock()?;
        if fs::read_link(&file).is_ok_and(|holder| !holder.starts_with(gone)) {
            return Ok(());
        }
        // In one step: a slot that is empty for a moment is anybody's.
        let draft = file.with_extension("draft");
        if let Err(error) = fs::remove_file(&draft)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed()(error));
        }
        std::os::unix::fs::symlink(heir, &draft).and_then(|()| fs::rename(&draft, &file)).map_err(failed())
    }

    /// Frees every range whose holder is `place`, or lies in it, and is gone: nobody was left to release it.
    pub(crate) fn release_below(&self, place: &Path) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let failed = || Error::io("release uid ranges");
        let _lock = self.lock()?;
        for slot in fs::read_dir(directory).map_err(failed())? {
            let slot = slot.map_err(failed())?.path();
            if fs::read_link(&slot).is_ok_and(|holder| holder.starts_with(place) && !holder.exists()) {
                fs::remove_file(&slot).map_err(failed())?;
            }
        }
        Ok(())
    }

    /// Taking over a dead holder's slot is two steps; nobody may come between them.
    fn lock(&self) -> Result<Option<fs::File>, Error> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let path = directory.with_extension("lock");
        let opened = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = opened.map_err(Error::io("open the uid register"))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| Error::io("lock the uid register")(errno.into()))?;
        Ok(Some(file))
    }

    fn file(&self, uids: Uids) -> Option<PathBuf> {
        match (uids, &self.directory) {
            (Uids::Range(base), Some(directory)) => Some(directory.join(((base - FIRST) / WIDTH).to_string())),
            _ => None,
        }
    }
}

/// A slot is a link to its owner's directory, made in one step; one whose owner is gone is free.
fn claim(slot: &Path, owner: &Path) -> io::Result<bool> {
    for _ in 0..2 {
        match std::os::unix::fs::symlink(owner, slot) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        let holder = match fs::read_link(slot) {
            Ok(holder) => holder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if holder.as_os_str().as_bytes() == owner.as_os_str().as_bytes() {
            return Ok(true);
        }
        if holder.exists() {
            return Ok(false);
        }
        match fs::remove_file(slot) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Root inside a container often has a few uids only.
fn maps_everything() -> bool {
    let covers = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        first == Some(0) && count.unwrap_or(0) >= u64::from(FIRST) + u64::from(SLOTS) * u64::from(WIDTH)
    };
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.lines().any(covers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_where_no_other_tool_looks() {
        assert_eq!(Register { directory: Some("/r".into()) }.file(Uids::Range(FIRST)), Some("/r/0".into()));
        let last = FIRST + (SLOTS - 1) * WIDTH;
        assert_eq!((SLOTS, last), (4094, 0x7FFD_0000));
        assert!(i32::try_from(last + WIDTH - 1).is_ok(), "no tool prints it as a negative number");
        // One that an earlier version gave out keeps its place in the register.
        let earlier = Register { directory: Some("/r".into()) }.file(Uids::Range(FIRST + 10_000 * WIDTH));
        assert_eq!(earlier, Some("/r/10000".into()));
    }

    #[test]
    fn only_its_owner_can_hold_the_register() -> Result<(), Box<dyn std::error::Error>> {
        let place = std::env::temp_dir().join(format!("sandbar-register-{}", std::process::id()));
        fs::create_dir_all(&place)?;
        // As an earlier version left it.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        let register = Register::at(&place)?;
        let uids = register.take(&place)?;
        let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        assert_eq!((mode(&place)?, mode(&place.join("uids.lock"))?), (0o700, 0o600));
        assert!(matches!(uids, Uids::Range(base) if (FIRST..END).contains(&base)), "{uids:?}");
        Ok(fs::remove_dir_all(&place)?)
    }

    #[test]
    fn a_range_has_one_holder_until_its_files_are_gone() -> io::Result<()> {
        let home = std::env::temp_dir().join(format!("sandbar-uids-{}", std::process::id()));
        let (one, two) = (home.join("one"), home.join("two"));
        fs::create_dir_all(&one)?;
        fs::create_dir_all(&two)?;
        let slot = home.join("slot");
        assert!(claim(&slot, &one)?);
        assert!(claim(&slot, &one)?, "its holder may claim it again");
        assert!(!claim(&slot, &two)?);
        fs::remove_dir(&one)?;
        assert!(claim(&slot, &two)?);
        fs::remove_dir_all(&home)
    }
}
