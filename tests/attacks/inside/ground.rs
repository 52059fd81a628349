//! Probes of what a sandbox stands on: its files, its guest, its terminals.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{
            fs::{FileExt as _, MetadataExt as _},
            process::CommandExt as _,
        },
    },
    path::Path,
    process::Command,
};

use rustix::fs::{CWD, RenameFlags};

use super::{Got, calls::text, reached};
use crate::sys::{
    self,
    Arg::{Buffer, N, Text},
    PAGE, call,
};

pub(super) fn named(name: &str) -> Option<Got> {
    Some(match name {
        "descriptors" => descriptors(),
        "proc_self_mem" => proc_self_mem(),
        "proc_self_mem_to_usr" => proc_self_mem_to_usr(),
        "others_in_proc" => others_in_proc(),
        "own_in_proc" => look("self").map(|found| found.unwrap_or_default()),
        "device_node" => device_node(),
        "exchange" => exchange(),
        "memfd_exec" => memfd_exec(),
        "tiocsti" => terminal(0x5412),
        "tiocsti_by_high_bits" => terminal((1 << 32) | 0x5412),
        "tioclinux" => terminal(0x541c),
        "tioccons" => terminal(0x541d),
        "line_discipline" => line_discipline(0x5423),
        "line_discipline_by_high_bits" => line_discipline((1 << 32) | 0x5423),
        "landlock_by_rename" => landlock_by_rename(),
        "landlock_by_hard_link" => landlock_by_hard_link(),
        "identity" => identity(),
        "core_dump" => core_dump(),
        "remount" => remount(),
        "bind_over" => bind_over(),
        "set_user_id" => set_user_id(),
        _ => return None,
    })
}

/// Whatever is open besides the three streams came from somebody else.
fn descriptors() -> Got {
    let ours = fs::read_dir("/proc/self/fd")?;
    let mut found = vec![];
    for entry in ours {
        let entry = entry?;
        let number: i32 = entry.file_name().to_string_lossy().parse().unwrap_or(-1);
        let leads = fs::read_link(entry.path()).unwrap_or_default();
        // The listing itself is one.
        if number > 2 && !leads.starts_with("/proc/") {
            found.push(format!("{number} is {}", leads.display()));
        }
    }
    if found.is_empty() { Err(io::Error::other("only 0, 1 and 2 are open")) } else { Ok(found.join(", ")) }
}

static CONSTANT: [u8; 8] = *b"constant";

/// The kernel lets a process write to its own read-only pages through this file.
fn proc_self_mem() -> Got {
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let place = std::hint::black_box(&CONSTANT).as_ptr() as u64;
    memory.write_all_at(b"CHANGED!", place)?;
    let mut seen = [0; 8];
    memory.read_exact_at(&mut seen, place)?;
    Ok(format!("a constant says {}", String::from_utf8_lossy(&seen)))
}

/// The pages of a program that belongs to the host.
fn proc_self_mem_to_usr() -> Got {
    let before = fs::read("/usr/bin/true")?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let line = maps.lines().next().unwrap_or_default();
    let place = u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).map_err(io::Error::other)?;
    memory.write_all_at(b"\x7fELF", place)?;
    if fs::read("/usr/bin/true")? == before { Ok("it can be written".into()) } else { Ok("the program changed".into()) }
}

/// Everything that shows or changes another process, of every process but our own ancestors' descendants.
fn others_in_proc() -> Got {
    let mut got = vec![];
    let mut looked = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse::<u32>() else { continue };
        if pid == std::process::id() {
            continue;
        }
        looked += 1;
        got.extend(look(&name).ok().flatten());
    }
    match got.is_empty() {
        false => Ok(got.join(", ")),
        true if looked > 0 => Err(io::Error::other(format!("{looked} processes keep theirs to themselves"))),
        true => Err(io::Error::other("there is no other process")),
    }
}

/// What of a process can be seen that only its equal should see.
fn look(name: &str) -> io::Result<Option<String>> {
    let process = Path::new("/proc").join(name);
    let mut seen = vec![];
    for file in ["environ", "maps", "auxv", "mem", "syscall", "stack", "io"] {
        // A kernel may give an open that reads nothing.
        if let Ok(mut opened) = File::open(process.join(file))
            && matches!((file, opened.read(&mut [0; 1])), ("mem", _) | (_, Ok(1)))
        {
            seen.push(file);
        }
    }
    for link in ["exe", "cwd", "root"] {
        if fs::read_link(process.join(link)).is_ok() {
            seen.push(link);
        }
    }
    for directory in ["fd", "map_files", "fdinfo"] {
        if fs::read_dir(process.join(directory)).is_ok_and(|mut entries| entries.next().is_some()) {
            seen.push(directory);
        }
    }
    if seen.is_empty() {
        return Ok(None);
    }
    let whose = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Ok(Some(format!("{name} ({}): {}", whose.trim(), seen.join(" "))))
}

/// `/dev/null` once more, which is harmless, and the first disk, which is not and is removed at once.
fn device_node() -> Got {
    let place = text("device")?;
    let mode = u64::from(libc::S_IFCHR | 0o600);
    let made = call(libc::SYS_mknodat, &mut [N(libc::AT_FDCWD as u64), Text(&place), N(mode), N(0x103)]);
    if made.is_ok() {
        fs::remove_file("device")?;
    }
    reached(made, &[])
}

/// Exchanges `a` and `b` of this directory until it is killed.
fn exchange() -> Got {
    super::say("exchanging");
    loop {
        rustix::fs::renameat_with(CWD, "a", CWD, "b", RenameFlags::EXCHANGE)?;
    }
}

/// A program that is in no file at all.
fn memfd_exec() -> Got {
    let handle = rustix::fs::memfd_create(c"program", rustix::fs::MemfdFlags::empty())?;
    File::from(handle.try_clone()?).write_all(&fs::read("/usr/bin/true")?)?;
    let ran = Command::new(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())).arg0("true").status()?;
    if ran.success() { Ok("it was executed".into()) } else { Err(io::Error::other(ran.to_string())) }
}

/// A request to the terminal on standard input.
fn terminal(request: u64) -> Got {
    let mut argument = [0; PAGE];
    // What is typed is echoed before the verdict, so it ends its line.
    argument[0] = b'\n';
    reached(call(libc::SYS_ioctl, &mut [N(0), N(request), Buffer(&mut argument)]), &[])
}

/// The one that the terminal has already: every other may need a module that this host lacks.
fn line_discipline(request: u64) -> Got {
    reached(call(libc::SYS_ioctl, &mut [N(0), N(request), Buffer(&mut [0; PAGE])]), &[])
}

/// Moves a file that may not be written to where everything may.
fn landlock_by_rename() -> Got {
    fs::rename("/etc/passwd", "/var/tmp/moved")?;
    let changed = File::options().append(true).open("/var/tmp/moved");
    fs::rename("/var/tmp/moved", "/etc/passwd")?;
    changed.map(|_| "a file of /etc could be written".into())
}

fn landlock_by_hard_link() -> Got {
    fs::hard_link("/etc/passwd", "/var/tmp/linked")?;
    let changed = File::options().append(true).open("/var/tmp/linked");
    fs::remove_file("/var/tmp/linked")?;
    changed.map(|_| "a file of /etc could be written".into())
}

/// What no two sandboxes may have in common.
fn identity() -> Got {
    let auxv = fs::read("/proc/self/auxv")?;
    let words: Vec<u64> =
        auxv.chunks_exact(8).map(|word| word.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))).collect();
    let place = words.chunks_exact(2).find(|pair| pair[0] == libc::AT_RANDOM).map_or(0, |pair| pair[1]);
    let mut seed = [0; 16];
    File::open("/proc/self/mem")?.read_exact_at(&mut seed, place)?;
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(format!("{seed:?} {random:?} {}", uuid.trim()))
}

/// A crash whose memory the host would keep, or hand to a program of its own, whatever limit stands in the way.
fn core_dump() -> Got {
    const CORE: u64 = libc::RLIMIT_CORE as u64;
    const DUMPED: i32 = 0x80;
    for wanted in [u64::MAX, 1 << 20, 0] {
        let mut limit = [0; PAGE];
        limit[..8].copy_from_slice(&wanted.to_le_bytes());
        limit[8..16].copy_from_slice(&wanted.to_le_bytes());
        // Refused where it would be raised; the crash comes anyway.
        call(libc::SYS_prlimit64, &mut [N(0), N(CORE), Buffer(&mut limit), N(0)]).ok();
        match sys::fork()? {
            None => {
                call(libc::SYS_kill, &mut [N(u64::from(std::process::id())), N(libc::SIGQUIT as u64)]).ok();
                sys::exit(0)
            }
            Some(pid) if sys::wait(pid)? & DUMPED != 0 => return Ok("the kernel dumped it".into()),
            Some(_) => {}
        }
    }
    Err(io::Error::other("nothing was dumped"))
}

/// Makes a read-only place writable again: /usr, or where we are root of our own namespaces a place made read-only.
fn remount() -> Got {
    const READ_ONLY: u64 = libc::MS_RDONLY;
    let (bind, remount) = (libc::MS_BIND, libc::MS_REMOUNT);
    let place = if Path::new("/workspace").exists() {
        "/usr".to_owned()
    } else {
        std::env::current_dir()?.to_string_lossy().into_owned()
    };
    let target = text(&place)?;
    if place != "/usr" {
        call(libc::SYS_mount, &mut [Text(&target), Text(&target), N(0), N(bind), N(0)])?;
        call(libc::SYS_mount, &mut [N(0), Text(&target), N(0), N(bind | remount | READ_ONLY), N(0)])?;
    }
    call(libc::SYS_mount, &mut [N(0), Text(&target), N(0), N(bind | remount), N(0)])?;
    Ok(format!("{place} is no longer read-only"))
}

/// With what is mounted below: in a user namespace the kernel refuses to bind a place without it, and whoever runs beside
/// the control may have mounted something there.
fn bind_over() -> Got {
    const BIND: u64 = libc::MS_BIND | libc::MS_REC;
    let over = call(libc::SYS_mount, &mut [Text(c"/tmp"), Text(c"/usr/bin"), N(0), N(BIND), N(0)]);
    reached(over, &[])
}

/// Every way to a set-user-id file; the kernel drops the bit silently on some, so the file is looked at.
fn set_user_id() -> Got {
    const MODE: u64 = 0o4755;
    let create = (libc::O_CREAT | libc::O_WRONLY) as u64;
    let unnamed = (libc::O_TMPFILE | libc::O_WRONLY) as u64;
    let mut how = [0; PAGE];
    how[..8].copy_from_slice(&create.to_le_bytes());
    how[8..16].copy_from_slice(&MODE.to_le_bytes());
    let (plain, made, here) = (text("plain")?, text("made")?, text(".")?);
    let at = || N(libc::AT_FDCWD as u64);
    File::create("plain")?;
    let mut refused = io::Error::other("nothing was tried");
    for (name, number, mut arguments) in [
        ("openat2", libc::SYS_openat2, vec![at(), Text(&made), Buffer(&mut how), N(24)]),
        ("fchmodat2", libc::SYS_fchmodat2, vec![at(), Text(&plain), N(0o6755), N(0)]),
        ("O_TMPFILE", libc::SYS_openat, vec![at(), Text(&here), N(unnamed), N(MODE)]),
        ("mknodat", libc::SYS_mknodat, vec![at(), Text(&made), N(0o10_4755), N(0)]),
        ("creat", libc::SYS_creat, vec![Text(&made), N(MODE)]),
        ("open", libc::SYS_open, vec![Text(&made), N(create), N(MODE)]),
        ("openat", libc::SYS_openat, vec![at(), Text(&made), N(create), N(MODE)]),
        ("fchmodat", libc::SYS_fchmodat, vec![at(), Text(&plain), N(MODE)]),
        ("chmod", libc::SYS_chmod, vec![Text(&plain), N(MODE)]),
    ] {
        let got = call(number, &mut arguments);
        let is_set = |name| fs::metadata(name).is_ok_and(|found| found.mode() & 0o6000 != 0);
        let set = is_set("plain") || is_set("made") || (got.is_ok() && name == "O_TMPFILE");
        if Path::new("made").exists() {
            fs::remove_file("made")?;
        }
        match got {
            _ if set => {
                fs::remove_file("plain")?;
                return Ok(format!("a set-user-id file by {name}"));
            }
            Ok(_) => {}
            Err(error) => refused = error,
        }
    }
    fs::remove_file("plain")?;
    Err(refused)
}
