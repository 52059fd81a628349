//! The lower layer of `host` roots: a skeleton with a harmless `/etc`, made once per home and shared, never changed.
//! `/usr` and the allow-listed files of the host's `/etc` are bound over it when a sandbox boots.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use sandbar_provider::Error;

use crate::uids::WORKLOAD;

/// Raised when the skeleton below changes: sandboxes that run keep the one they were started on.
const EDITION: u32 = 1;

/// Of the host's `/etc`: what programs need and nobody minds showing. Everything else is not there.
pub(crate) const ETC: &[&str] = &[
    "alternatives",    // /usr/bin's links go through it
    "bash.bashrc",     // the prompt people expect
    "ca-certificates", // certificates: public by nature
    "ca-certificates.conf",
    "debian_version",
    "ethertypes",
    "fonts",
    "inputrc",
    "ld.so.cache", // without it every program searches for its libraries
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "pki", // certificates on Fedora and its kin
    "profile",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/certs", // not ssl/private
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
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
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n";

/// Finds or makes the skeleton below `local`.
pub(crate) fn ensure(local: &Path, chowns: bool) -> Result<PathBuf, Error> {
    let done = local.join(format!("base-{EDITION}"));
    if done.exists() {
        return Ok(done);
    }
    let draft = local.join(format!("base-{EDITION}.draft"));
    let failed = |error| Error::io(format!("make the base layer in {}", local.display()))(error);
    if draft.exists() {
        fs::remove_dir_all(&draft).map_err(failed)?;
    }
    build(&draft, chowns).map_err(failed)?;
    fs::rename(&draft, &done).map_err(failed)?;
    Ok(done)
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
        fs::write(base.join("etc").join(name), text)?;
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
    for name in ETC {
        place(&Path::new("/etc").join(name), &base.join("etc").join(name))?;
    }
    Ok(())
}

/// What is a link on the host is the same link here (it leads into /usr); the rest gets something to be bound over.
fn place(host: &Path, here: &Path) -> io::Result<()> {
    match fs::symlink_metadata(host) {
        Ok(found) if found.is_symlink() => symlink(fs::read_link(host)?, here),
        Ok(found) if found.is_dir() => directory(here, 0o755),
        Ok(_) => fs::write(here, ""),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    // Said again because of the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
