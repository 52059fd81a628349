//! The lower layer of `host` roots: a skeleton with a harmless `/etc`, made once per home and shared, never changed.
//! `/usr` and a few directories of the host's `/etc` are bound over it when a sandbox boots.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
};

use sandbar_provider::Error;

use crate::uids::WORKLOAD;

/// Raised when the skeleton below changes.
const EDITION: u32 = 3;

/// Of the host's `/etc`: files that programs need and nobody minds showing, copied. Everything else is not there.
const COPIED: &[&str] = &[
    "bash.bashrc", // the prompt people expect
    "debian_version",
    "ethertypes",
    "inputrc",
    "ld.so.cache", // without it every program searches for its libraries
    "ld.so.conf",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "profile",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/openssl.cnf",
    "timezone",
];

/// Directories of the host's `/etc` for which the same holds, bound: some have hundreds of links.
pub(crate) const BOUND: &[&str] = &[
    "alternatives", // /usr/bin's links go through it
    "fonts",
    "pki",       // certificates on Fedora and its kin
    "ssl/certs", // public by nature; not ssl/private
];

/// Directories of the host's `/etc` by how their names begin, for which the same holds, copied as far as everybody may
/// read them.
const FAMILIES: &[&str] = &[
    "java-", // Debian keeps there what a Java machine does not start without
];

/// Top-level names that are links into `/usr` on merged systems and directories on others.
pub(crate) const USR_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/ssl", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/cache/apt", 0o755),
    ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o755),
    ("var/lib", 0o755),
    ("var/lib/apt", 0o755),
    ("var/lib/apt/lists", 0o755),
    ("var/lib/apt/lists/partial", 0o755),
    ("var/lib/dpkg", 0o755),
    ("var/log", 0o755),
    ("var/log/apt", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n";

/// Finds or makes the skeleton below `local`. Its name tells what went into it: when the host's files change, the next
/// server makes a new one, and sandboxes keep the one they were started on.
pub(crate) fn ensure(local: &Path, chowns: bool) -> Result<PathBuf, Error> {
    let done = local.join(format!("{PREFIX}{:016x}", fingerprint(chowns)));
    if done.exists() {
        return Ok(done);
    }
    let draft = local.join(format!("{PREFIX}draft"));
    let failed = |error| Error::io(format!("make the base layer in {}", local.display()))(error);
    if draft.exists() {
        fs::remove_dir_all(&draft).map_err(failed)?;
    }
    build(&draft, chowns).map_err(failed)?;
    fs::rename(&draft, &done).map_err(failed)?;
    Ok(done)
}

const PREFIX: &str = "base-";

/// Removes skeletons of earlier hosts that no sandbox stands on any more.
pub(crate) fn prune(local: &Path, current: &Path, used: &[PathBuf]) -> io::Result<()> {
    for entry in fs::read_dir(local)? {
        let path = entry?.path();
        let is_base = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if is_base && path != current && !used.contains(&path) {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

/// FNV-1a over what the skeleton is made from: not a secret, only a name.
fn fingerprint(chowns: bool) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(&[EDITION as u8, u8::from(chowns)]);
    let host = COPIED.iter().chain(BOUND).map(|name| Path::new("/etc").join(name)).chain(families());
    for path in host.chain(USR_LINKS.iter().map(|name| Path::new("/").join(name))) {
        add(path.as_os_str().as_bytes());
        if let Ok(found) = fs::symlink_metadata(&path) {
            add(&found.mode().to_le_bytes());
            if !found.is_dir() {
                add(&found.mtime().to_le_bytes());
                add(&found.mtime_nsec().to_le_bytes());
                add(&found.size().to_le_bytes());
            }
        }
    }
    hash
}

fn build(base: &Path, chowns: bool) -> io::Result<()> {
    directory(base, 0o755)?;
    for (name, mode) in DIRECTORIES {
        directory(&base.join(name), *mode)?;
    }
    let home = base.join("home/agent");
    directory(&home, 0o750)?;
    if chowns {
        chown(&home, Some(WORKLOAD), Some(WORKLOAD))?;
    }
    for (name, text) in [
        ("passwd", PASSWD),
        ("group", GROUP),
        ("hosts", HOSTS),
        ("nsswitch.conf", NSSWITCH),
        // Empty: there is no resolver inside, and a program that tries should learn so at once.
        ("resolv.conf", ""),
    ] {
        let path = base.join("etc").join(name);
        fs::write(&path, text)?;
        // Said because of the umask.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    symlink("/proc/self/mounts", base.join("etc/mtab"))?;
    symlink("/run", base.join("var/run"))?;
    for name in USR_LINKS {
        match fs::symlink_metadata(Path::new("/").join(name)) {
            Ok(found) if found.is_symlink() => symlink(fs::read_link(Path::new("/").join(name))?, base.join(name))?,
            Ok(found) if found.is_dir() => directory(&base.join(name), 0o755)?,
            _ => {}
        }
    }
    for name in COPIED {
        let (host, here) = (Path::new("/etc").join(name), base.join("etc").join(name));
        match fs::symlink_metadata(&host) {
            // It leads into /usr.
            Ok(found) if found.is_symlink() => symlink(fs::read_link(&host)?, &here)?,
            Ok(found) if found.is_file() => drop(fs::copy(&host, &here)?),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for host in families() {
        copy_readable(&host, &base.join("etc").join(host.file_name().unwrap_or_default()))?;
    }
    for name in BOUND {
        if Path::new("/etc").join(name).is_dir() {
            directory(&base.join("etc").join(name), 0o755)?;
        }
    }
    Ok(())
}

/// In an order that does not change.
fn families() -> Vec<PathBuf> {
    let of_one = |name: &str| FAMILIES.iter().any(|family| name.starts_with(family));
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(of_one))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// What the host keeps from others stays out, whoever makes the copy.
fn copy_readable(host: &Path, here: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(host)?;
    if found.is_symlink() {
        symlink(fs::read_link(host)?, here)
    } else if found.is_dir() && found.mode() & 0o005 == 0o005 {
        directory(here, 0o755)?;
        for entry in fs::read_dir(host)? {
            let entry = entry?;
            copy_readable(&entry.path(), &here.join(entry.file_name()))?;
        }
        Ok(())
    } else if found.is_file() && found.mode() & 0o004 != 0 {
        fs::copy(host, here).map(drop)
    } else {
        Ok(())
    }
}

fn directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    // Said again because of the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
