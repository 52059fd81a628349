//! What a sandbox sees of the filesystem: a private overlay root, the host's programs read-only, a fresh /proc and
//! /dev, its workspace, and nothing else. Ends with pivot_root: the host's tree is no longer anywhere.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount},
};
use sandbar_api::{Layer, Requirement, User};
use sandbar_guest::trust::{BUNDLE, SYSTEM_BUNDLES};

use crate::{
    directory::{self, Data},
    idmap,
    launch::{Launch, RootKind},
    mount::{QUIET, STACK, attach, device, filesystem, open, overlay, stack},
    programs::{self, Program},
    step::{Failure, Step},
    sys::{self, Reach},
    uids::{Uids, WORKLOAD},
};

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Room for temporary files, unless the template says otherwise; they are memory.
const TMP_SIZE: u64 = 512 << 20;
const SHM_SIZE: u64 = 64 << 20;
/// Of a list of hosts.
const LONGEST_HOSTS: u64 = 64 << 10;
const RUN_SIZE: u64 = 16 << 20;
const DEV_SIZE: u64 = 64 << 10;
/// Of the home directory where the root is read-only.
const HOME_SIZE: u64 = 256 << 20;
/// Files are kernel memory too: one for every so many bytes, and some for an empty tree.
const BYTES_PER_FILE: u64 = 4096;
const LEAST_FILES: u64 = 1024;
/// Of the few thousand that all of the host's terminals share.
const MAX_TERMINALS: &str = "256";
/// Where a sandbox has them, from its root on.
const SKILLS: &str = "skills";
/// An empty directory of the base.
const EMPTY: &str = "mnt";

/// The trees of a view, not yet anywhere. Root's launcher makes them; who has one uid makes them from paths.
struct Trees {
    lower: OwnedFd,
    overlaid: Vec<OwnedFd>,
    workspace: Option<OwnedFd>,
    skills: Option<OwnedFd>,
    image: Option<OwnedFd>,
    layers: Vec<OwnedFd>,
}

impl Trees {
    fn take(launch: &Launch, made: Vec<OwnedFd>) -> Result<Self, Failure> {
        match launch.uids {
            Uids::Range(_) => Self::given(launch, made).ok_or_else(|| {
                Failure::at(Step::Root, "receive the trees of the view")(io::Error::other("some are missing"))
            }),
            Uids::One { .. } => Self::own(launch),
        }
    }

    fn given(launch: &Launch, made: Vec<OwnedFd>) -> Option<Self> {
        let mut made = made.into_iter();
        let lower = made.next()?;
        let rest = [launch.workspace.is_some(), launch.skills.is_some(), launch.data == Data::Image];
        let rest: usize = rest.into_iter().map(usize::from).sum();
        let count = made.len().checked_sub(rest + launch.layers.len())?;
        let overlaid = made.by_ref().take(count).collect();
        let workspace = launch.workspace.as_ref().and_then(|_| made.next());
        let skills = launch.skills.as_ref().and_then(|_| made.next());
        let image = if launch.data == Data::Image { made.next() } else { None };
        Some(Self { lower, overlaid, workspace, skills, image, layers: made.collect() })
    }

    fn own(launch: &Launch) -> Result<Self, Failure> {
        let lower = open(&launch.lower).and_then(|lower| idmap::detached(lower, None));
        let layers = launch.layers.iter().map(|layer| open(&layer.path).and_then(|layer| idmap::detached(layer, None)));
        let workspace = launch.workspace.as_ref().map(|bound| {
            // Opened again: the server's descriptor belongs to another mount namespace, where we may not mount.
            bound.open().and_then(|workspace| idmap::detached(workspace, None))
        });
        let skills = launch.skills.as_ref().map(|bound| bound.open().and_then(|skills| idmap::readable(skills, None)));
        Ok(Self {
            lower: lower.map_err(Failure::at(Step::Root, "open the lower layer"))?,
            overlaid: Vec::new(),
            workspace: workspace.transpose().map_err(Failure::at(Step::Workspace, "open the workspace"))?,
            skills: skills.transpose().map_err(Failure::at(Step::Skills, "open the skills"))?,
            image: None,
            layers: layers.collect::<io::Result<_>>().map_err(Failure::at(Step::Layers, "open the layers"))?,
        })
    }
}

/// Builds the view below the sandbox's directory, where we are, and makes it the root of this mount namespace.
pub(crate) fn build(launch: &Launch, programs: Vec<Program>, made: Vec<OwnedFd>) -> Result<(), Failure> {
    let at = |step, what: &str| Failure::at(step, what.to_owned());
    // Nothing mounted here may show on the host, nor the other way round.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| at(Step::Mounts, "make mounts private")(errno.into()))?;
    let trees = Trees::take(launch, made)?;
    enter_data(launch.data, trees.image.as_ref()).map_err(at(Step::Disk, "enter the sandbox's files"))?;
    let stacked = [&trees.lower].into_iter().chain(&trees.overlaid).chain(&trees.layers);
    for tree in stacked {
        stack(tree).map_err(at(Step::Mounts, "stack a lower layer"))?;
    }
    let below = |name: &str, last: Option<&OwnedFd>| -> Vec<String> {
        let layers = trees.layers.iter().map(|layer| format!("/proc/self/fd/{}/{name}", layer.as_raw_fd()));
        layers.chain(last.map(|last| format!("/proc/self/fd/{}", last.as_raw_fd()))).collect()
    };

    let workspace = match trees.workspace {
        Some(bound) => Ok(bound),
        None if trees.layers.is_empty() => open(directory::WORKSPACE).and_then(|own| idmap::detached(own, None)),
        None => overlay(&below(directory::WORKSPACE, None), directory::WORKSPACE, directory::WORK_WORKSPACE),
    }
    .map_err(at(Step::Workspace, "open the workspace"))?;
    if !trees.overlaid.is_empty() && trees.layers.is_empty() {
        own_overrides().map_err(at(Step::Root, "prepare the package database"))?;
    }
    let overlaid =
        trees.overlaid.iter().zip(directory::OVERLAID).map(|(tree, (name, place))| {
            Ok((overlay(&below(name, Some(tree)), name, &format!("work-{name}"))?, place))
        });
    let overlaid: Vec<_> =
        overlaid.collect::<io::Result<_>>().map_err(at(Step::Root, "mount what root inside may change"))?;
    let root = overlay(&below(directory::UPPER, Some(&trees.lower)), directory::UPPER, directory::WORK)
        .map_err(at(Step::Root, "mount the root overlay"))?;
    // What the host and its /proc are needed for, as long as they are there.
    let proc = filesystem("proc", &[], QUIET | libc::MOUNT_ATTR_NOEXEC).map_err(at(Step::Proc, "mount /proc"))?;
    let devices = Devices::gather().map_err(at(Step::Dev, "find the host's devices"))?;
    let programs = match (launch.root, launch.uids) {
        (RootKind::Image, _) => Vec::new(),
        (RootKind::Host, Uids::Range(_)) => programs,
        (RootKind::Host, Uids::One { .. }) => {
            programs::find(launch.user).map_err(at(Step::Programs, "find the host's programs"))?
        }
    };
    let empty = format!("/proc/self/fd/{}/{EMPTY}", trees.lower.as_raw_fd());
    let programs = programs::overlays(programs, launch.uids, &empty)
        .map_err(at(Step::Programs, "mount an overlay over the host's programs"))?;
    let overlaid = overlaid.into_iter().map(|(tree, place)| (tree, place.to_owned()));
    let programs: Vec<_> = overlaid.chain(programs).collect();
    attach(&root, STACK).map_err(at(Step::Root, "attach the root"))?;
    rustix::process::chdir(STACK).map_err(|errno| at(Step::Root, "enter the root")(errno.into()))?;
    pivot().map_err(at(Step::Pivot, "pivot into the root"))?;

    // From here on every path, whatever a sandbox has put in its way, leads to something inside.
    if launch.root == RootKind::Image {
        image_parts(launch.uids).map_err(at(Step::Root, "complete the image's root"))?;
    }
    for (tree, place) in &programs {
        // The base has a place for what the host had when it was made.
        if Path::new(place).exists() {
            attach(tree, place).map_err(at(Step::Mounts, "show the host's programs"))?;
        }
    }
    attach(&proc, "proc").map_err(at(Step::Proc, "attach /proc"))?;
    let no_exec = launch.asked(Layer::NoExec) != Requirement::Off;
    let quiet = QUIET | if no_exec { libc::MOUNT_ATTR_NOEXEC } else { 0 };
    devices.build(quiet).map_err(at(Step::Dev, "build /dev"))?;
    memory("tmp", launch.tmp_size.unwrap_or(TMP_SIZE), "1777", 0, quiet).map_err(at(Step::Mounts, "make /tmp"))?;
    memory("run", RUN_SIZE, "755", 0, quiet).map_err(at(Step::Mounts, "make /run"))?;
    if launch.user == User::Agent || launch.asked(Layer::ReadOnlyRoot) != Requirement::Off {
        own_hosts().map_err(at(Step::Mounts, "make a list of hosts"))?;
    }
    attach(&workspace, "workspace").map_err(at(Step::Workspace, "attach the workspace"))?;
    if let Some(skills) = &trees.skills {
        place_of_skills().and_then(|()| attach(skills, SKILLS)).map_err(at(Step::Skills, "attach the skills"))?;
    }
    if !trees.layers.is_empty() {
        identity().map_err(at(Step::Root, "give the copy an identity of its own"))?;
    }
    harden(launch, &root, quiet, no_exec)
}

/// Where programs find the certificates to trust, first the root's own. In memory, so that no copy of the sandbox has it.
pub(crate) fn trust() -> io::Result<OwnedFd> {
    fs::create_dir("/run/sandbar")?;
    put_trust(Path::new("/run/sandbar"))?;
    Ok(fs::File::open("/run/sandbar")?.into())
}

/// What an empty directory of that kind begins with. One that has it already, in a container that was started again, is
/// fine.
pub(crate) fn put_trust(directory: &Path) -> io::Result<()> {
    let system = SYSTEM_BUNDLES.iter().find(|path| Path::new(path).exists()).unwrap_or(&SYSTEM_BUNDLES[0]);
    let unless_there = |made: io::Result<()>| match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    unless_there(std::os::unix::fs::symlink(system, directory.join(BUNDLE)))?;
    // Which reads no variable for this alone.
    let apt = format!("Acquire::https::CAInfo \"/run/sandbar/{BUNDLE}\";\n");
    let file = fs::File::options().write(true).create_new(true).open(directory.join("apt.conf"));
    unless_there(file.and_then(|mut file| io::Write::write_all(&mut file, apt.as_bytes())))
}

/// To where `upper` and its like are.
fn enter_data(data: Data, image: Option<&OwnedFd>) -> io::Result<()> {
    if let Some(image) = image {
        attach(image, directory::DATA)?;
    }
    match data {
        Data::Plain => Ok(()),
        Data::Subvolume | Data::Image => Ok(rustix::process::chdir(directory::DATA)?),
    }
}

/// A root that nothing can be written to, or executed from once written; last, because the view is built in it.
fn harden(launch: &Launch, root: &OwnedFd, quiet: u64, no_exec: bool) -> Result<(), Failure> {
    let (home, owner) = match launch.user {
        User::Agent => ("home/agent", WORKLOAD),
        User::Root => ("root", 0),
    };
    let read_only = launch.asked(Layer::ReadOnlyRoot) != Requirement::Off;
    if read_only {
        memory(home, HOME_SIZE, "750", owner, quiet).map_err(Failure::at(Step::ReadOnly, "make a home directory"))?;
        sys::mount_setattr(root, libc::MOUNT_ATTR_RDONLY, Reach::Alone, None)
            .map_err(Failure::at(Step::ReadOnly, "make the root read-only"))?;
    } else if no_exec {
        // Its programs are in /usr, which is a mount of its own.
        sys::mount_setattr(root, libc::MOUNT_ATTR_NOEXEC, Reach::Alone, None)
            .map_err(Failure::at(Step::NoExec, "forbid execution from the root"))?;
    }
    Ok(())
}

/// The host's overrides of owners name groups that do not exist inside, which its package manager takes for damage. Only
/// a file of ours, made anew: what a sandbox left in that place stays as it is.
fn own_overrides() -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open("dpkg/statoverride", flags, Mode::from_raw_mode(0o644)) {
        Ok(_) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// What identifies the machine whose files were copied.
fn identity() -> io::Result<()> {
    // What a sandbox has put in its place (a link, a pipe nobody reads, a directory) is no identity of a machine.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open("/etc/machine-id", flags, Mode::empty()) else { return Ok(()) };
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    rustix::fs::ftruncate(&file, 0)?;
    rustix::io::write(&file, format!("{:032x}\n", random()?).as_bytes())?;
    Ok(())
}

/// An image has a root of its own; what it lacks to be a sandbox is added in the overlay.
fn image_parts(uids: Uids) -> io::Result<()> {
    for name in ["proc", "dev", "tmp", "run", "workspace", "home", "home/agent"] {
        match fs::create_dir(name) {
            Ok(()) if name == "home/agent" && matches!(uids, Uids::Range(_)) => {
                std::os::unix::fs::chown(name, Some(WORKLOAD), Some(WORKLOAD))?;
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whoever was root inside may have put something else in its place, which is not followed.
fn place_of_skills() -> io::Result<()> {
    match fs::create_dir(SKILLS) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::symlink_metadata(SKILLS)?.is_dir() => Ok(()),
        made => made,
    }
}

/// A list of hosts in memory, which begins as the root's: it can be changed where the root cannot, and leaves nothing on the
/// disk. Only over a file: what a sandbox has put in its place is not followed.
fn own_hosts() -> io::Result<()> {
    let is = |path: &str, kind: fn(&fs::FileType) -> bool| {
        fs::symlink_metadata(path).is_ok_and(|found| kind(&found.file_type()))
    };
    if !is("etc", fs::FileType::is_dir) || !is("etc/hosts", fs::FileType::is_file) {
        return Ok(());
    }
    // There is not room for whatever somebody left there.
    if fs::symlink_metadata("etc/hosts")?.len() > LONGEST_HOSTS {
        return Ok(());
    }
    let draft = "run/hosts";
    fs::copy("etc/hosts", draft)?;
    let file = device(draft)?;
    sys::mount_setattr(&file, QUIET | libc::MOUNT_ATTR_NOEXEC, Reach::Alone, None)?;
    attach(&file, "etc/hosts")?;
    fs::remove_file(draft)
}

/// A tmpfs of a size, with a bound on the number of its files too.
fn memory(place: &str, size: u64, mode: &str, owner: u32, attributes: u64) -> io::Result<()> {
    let files = (size / BYTES_PER_FILE).max(LEAST_FILES).to_string();
    let (size, owner) = (size.to_string(), owner.to_string());
    let mut options = vec![("size", size.as_str()), ("nr_inodes", &files), ("mode", mode)];
    if owner != "0" {
        options.extend([("uid", owner.as_str()), ("gid", &owner)]);
    }
    attach(&filesystem("tmpfs", &options, attributes)?, place)
}

/// A /dev with the harmless devices, its own terminals and nothing else.
struct Devices(Vec<(OwnedFd, &'static str)>);

impl Devices {
    fn gather() -> io::Result<Self> {
        let found = DEVICES.iter().map(|name| Ok((device(&format!("/dev/{name}"))?, *name)));
        found.collect::<io::Result<_>>().map(Self)
    }

    fn build(self, quiet: u64) -> io::Result<()> {
        let dev = filesystem("tmpfs", &[("size", &DEV_SIZE.to_string()), ("mode", "755")], libc::MOUNT_ATTR_NOSUID)?;
        attach(&dev, "dev")?;
        for (device, name) in self.0 {
            let place = format!("dev/{name}");
            fs::write(&place, "")?;
            attach(&device, &place)?;
        }
        for (target, name) in [
            ("/proc/self/fd", "dev/fd"),
            ("/proc/self/fd/0", "dev/stdin"),
            ("/proc/self/fd/1", "dev/stdout"),
            ("/proc/self/fd/2", "dev/stderr"),
            ("pts/ptmx", "dev/ptmx"),
        ] {
            std::os::unix::fs::symlink(target, name)?;
        }
        fs::create_dir("dev/pts")?;
        fs::create_dir("dev/shm")?;
        let silent = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        let options = [("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)];
        attach(&filesystem("devpts", &options, silent)?, "dev/pts")?;
        memory("dev/shm", SHM_SIZE, "1777", 0, quiet)?;
        boot_id()?;
        // What the machine was booted with may name disks, hosts and keys.
        over_proc("cmdline", "\n")?;
        // Where there is one uid, it is the workload's own: it could put something else in the place of a device.
        sys::mount_setattr(&dev, libc::MOUNT_ATTR_RDONLY, Reach::Alone, None)
    }
}

/// One of its own: programs take the host's for the name of a machine.
fn boot_id() -> io::Result<()> {
    let random = random()?;
    let (a, b, c, d, e) =
        (random >> 96, random >> 80 & 0xffff, random >> 64 & 0xfff, random >> 48 & 0x3fff, random & 0xffff_ffff_ffff);
    over_proc("sys/kernel/random/boot_id", &format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{e:012x}\n", d | 0x8000))
}

/// A text in the place of what the kernel tells of the machine. The file has no name once it is mounted.
fn over_proc(name: &str, text: &str) -> io::Result<()> {
    let draft = "dev/draft";
    fs::write(draft, text)?;
    let file = device(draft)?;
    sys::mount_setattr(&file, QUIET | libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOEXEC, Reach::Alone, None)?;
    attach(&file, &format!("proc/{name}"))?;
    fs::remove_file(draft)
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u128::from_le_bytes(bytes))
}

/// The old root is stacked under the new one and then taken away; nothing has to be left to stand on.
fn pivot() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}
