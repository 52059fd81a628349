//! What the launcher forks: guests, and short-lived helpers that do what a threaded server may not (enter a sandbox's
//! namespaces) or cannot (read what only the sandbox's users may read).

use std::{
    fs,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::Mode,
    mount::{MoveMountFlags, move_mount},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::Signal,
};
use sandbar_api::{Layer, Requirement, Root, User};

use crate::{
    boot::{self, Boot},
    copy,
    directory::{self, Data},
    disk::{self, Access},
    fence::Fence,
    frame, guest_pid, idmap,
    launch::{Bind, Go, Keep, Launch, RootKind, Told},
    launcher::{GATE, SOCKET, tell},
    oom::Scores,
    programs::{self, Program},
    step::{Failure, Step},
    sys::{self, Cloned, NotCloned},
    uids::Uids,
};

/// A fork's pidfd and the pipe on which it tells how it went.
type Forked = (OwnedFd, OwnedFd);

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The descriptors of a launch, as `Launch` lists them.
struct Parts {
    directory: OwnedFd,
    lower: OwnedFd,
    workspace: Option<OwnedFd>,
    skills: Option<OwnedFd>,
    image: Option<OwnedFd>,
    layers: Vec<OwnedFd>,
    groups: Option<Groups>,
}

struct Groups {
    guest: OwnedFd,
    work: OwnedFd,
    joins: Vec<OwnedFd>,
}

impl Parts {
    fn take(launch: &Launch, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let directory = fds.next()?;
        let lower = fds.next()?;
        let workspace = if launch.workspace.is_some() { Some(fds.next()?) } else { None };
        let skills = if launch.skills.is_some() { Some(fds.next()?) } else { None };
        let image = if launch.data == Data::Image { Some(fds.next()?) } else { None };
        let layers: Vec<_> = fds.by_ref().take(launch.layers.len()).collect();
        let groups = match launch.groups {
            Some(shape) => {
                let (guest, work) = (fds.next()?, fds.next()?);
                let joins: Vec<_> = fds.by_ref().take(shape.joins).collect();
                (joins.len() == shape.joins).then_some(Groups { guest, work, joins })
            }
            None => None,
        };
        let whole = layers.len() == launch.layers.len() && groups.is_some() == launch.groups.is_some();
        whole.then_some(Self { directory, lower, workspace, skills, image, layers, groups })
    }
}

fn incomplete() -> Failure {
    Failure { step: Step::Listen, errno: None, detail: "receive the descriptors of a request".into() }
}

pub(crate) fn guest(launch: Launch, fds: Vec<OwnedFd>, fence: &Fence, oom: Option<Scores>) -> Result<Forked, Failure> {
    let parts = Parts::take(&launch, fds).ok_or_else(incomplete)?;
    // The guest inherits this as its working directory, translated into its own mount namespace; a descriptor would
    // stay in ours, where it may not mount.
    rustix::process::fchdir(&parts.directory)
        .map_err(|errno| Failure::at(Step::Listen, "enter the sandbox's directory")(errno.into()))?;
    let listener = listen(SOCKET).map_err(Failure::at(Step::Listen, "listen for the server"))?;
    let handout = listen(GATE).map_err(Failure::at(Step::Listen, "listen for who takes the gate"))?;
    let (status_reader, status) = io::pipe().map_err(Failure::at(Step::Listen, "make a pipe"))?;
    let (ours, theirs) = frame::pair().map_err(Failure::at(Step::Listen, "make a socket pair"))?;

    let owner = launch.uids.root_on_host();
    let cloned = sys::clone_as(owner, NAMESPACES as u64, parts.groups.as_ref().map(|groups| &groups.guest));
    let cloned = cloned.map_err(|error| match error {
        NotCloned::User(error) => Failure::at(Step::Capabilities, "become the sandbox's user and keep them")(error),
        NotCloned::Clone(error) => {
            let what = "clone3 into user, mount, pid, net, ipc, uts and cgroup namespaces";
            Failure::at(Step::Namespaces, what)(error)
        }
    })?;
    let (pid, pidfd) = match cloned {
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
        Cloned::Child => {
            sys::default_children();
            let group =
                parts.groups.map(|groups| sandbar_guest::Group { directory: Some(groups.work), joins: groups.joins });
            boot::run(Boot { launch, listener, handout, go: theirs, status, fence, group })
        }
    };
    drop((theirs, status, listener, handout));
    let prepared = prepare(pid, &launch, &parts).and_then(|(programs, trees)| {
        let file = oom.and_then(|_| Scores::file_of(pid).ok());
        let places = programs.iter().map(|program| program.place.clone()).collect();
        let go = Go { oom: oom.filter(|_| file.is_some()), programs: places };
        let programs = programs.iter().map(|program| &program.tree);
        let fds: Vec<_> = file.iter().chain(programs).chain(&trees).map(AsFd::as_fd).collect();
        frame::send(&ours, &go, &fds).map_err(Failure::at(Step::UidMap, "let the guest go"))
    });
    if let Err(failure) = prepared {
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).ok();
        return Err(failure);
    }
    Ok((pidfd, status_reader.into()))
}

/// What only the parent may do for the child: write its uid map, make the trees of its view, remember its pid.
fn prepare(pid: i32, launch: &Launch, parts: &Parts) -> Result<(Vec<Program>, Vec<OwnedFd>), Failure> {
    map_users(pid, launch.uids)?;
    guest_pid::write(&parts.directory, pid).map_err(Failure::at(Step::Listen, "write guest.pid"))?;
    match launch.uids {
        Uids::Range(base) => {
            let programs = match launch.root {
                RootKind::Host => programs::take(launch.user),
                RootKind::Image => Ok(Vec::new()),
            };
            let programs = programs.map_err(Failure::at(Step::Programs, "find the host's programs"))?;
            Ok((programs, trees(pid, base, launch, parts)?))
        }
        // It makes them itself: only in its own namespace may it mount at all.
        Uids::One { .. } => Ok((Vec::new(), Vec::new())),
    }
}

fn map_users(pid: i32, uids: Uids) -> Result<(), Failure> {
    let write = |file: &str, text: &str| {
        fs::write(format!("/proc/{pid}/{file}"), text).map_err(Failure::at(Step::UidMap, format!("write {file}")))
    };
    if matches!(uids, Uids::One { .. }) {
        // The kernel demands it of whoever maps gids without privilege.
        write("setgroups", "deny")?;
    }
    write("uid_map", &uids.uid_map())?;
    write("gid_map", &uids.gid_map())
}

/// In the order in which `view::Trees` takes them.
fn trees(pid: i32, base: u32, launch: &Launch, parts: &Parts) -> Result<Vec<OwnedFd>, Failure> {
    let namespace = idmap::user_namespace(pid).map_err(Failure::at(Step::Idmap, "open the user namespace"))?;
    let shifted = |tree: &OwnedFd, what: &str| {
        idmap::detached(tree, Some(&namespace)).map_err(Failure::at(Step::Idmap, format!("shift the owners of {what}")))
    };
    let mut trees = vec![shifted(&parts.lower, "the root")?];
    if launch.user == User::Root && launch.root == RootKind::Host {
        for (_, place) in directory::OVERLAID {
            let path = std::path::Path::new("/").join(place);
            if let Ok(tree) = directory::open_path(&path) {
                trees.push(shifted(&tree, place)?);
            }
        }
    }
    if let (Some(tree), Some(bound)) = (&parts.workspace, &launch.workspace) {
        trees.push(workspace(tree, bound.owner, launch.uids, launch.user)?);
    }
    if let Some(skills) = &parts.skills {
        // Nobody inside owns any of it: what the host keeps from everybody, it keeps from every sandbox. Who keeps the
        // capability to mount could make it writable again.
        let mounts = launch.user == User::Root && launch.asked(Layer::Capabilities) == Requirement::Off;
        let map = mounts.then(|| idmap::nobodys(base)).transpose();
        let map = map.map_err(Failure::at(Step::Idmap, "map the owners of the skills"))?;
        let tree = idmap::readable(skills, map.as_ref());
        let step = if mounts { Step::Idmap } else { Step::Skills };
        trees.push(tree.map_err(Failure::at(step, "show the skills"))?);
    }
    if let Some(image) = &parts.image {
        let mount =
            disk::mount(image, Access::ReadWrite).map_err(Failure::at(Step::Disk, "mount the sandbox's disk"))?;
        let root = match launch.root {
            RootKind::Host => Root::Host,
            RootKind::Image => Root::Image { path: String::new() },
        };
        let names = directory::furniture(launch.uids, launch.layers.len(), launch.user, &root);
        disk::furnish(&mount, &names).map_err(Failure::at(Step::Disk, "furnish the sandbox's disk"))?;
        trees.push(mount);
    }
    for (layer, fd) in launch.layers.iter().zip(&parts.layers) {
        let failed = || Failure::at(Step::Layers, format!("open the layer {}", layer.path.display()));
        let map = match layer.uids {
            Uids::Range(from) => idmap::range(from, base).map_err(failed())?,
            Uids::One { .. } => return Err(failed()(io::Error::other("it was made by an ordinary user"))),
        };
        let tree = match layer.data {
            Data::Image => {
                let mount = disk::mount(fd, Access::ReadOnly).map_err(failed())?;
                idmap::shift(mount, &map)
            }
            Data::Plain | Data::Subvolume => idmap::detached(fd, Some(&map)),
        };
        trees.push(tree.map_err(failed())?);
    }
    Ok(trees)
}

/// A directory of the host whose owner appears inside as the workload's user.
fn workspace(tree: &OwnedFd, owner: (u32, u32), uids: Uids, user: User) -> Result<OwnedFd, Failure> {
    let inside = match user {
        User::Agent => uids.workload_on_host(),
        User::Root => uids.root_on_host(),
    };
    let map = inside.map(|user| idmap::single(owner, user)).transpose();
    let map = map.map_err(Failure::at(Step::Idmap, "map the workspace's owner"))?;
    idmap::detached(tree, map.as_ref()).map_err(Failure::at(Step::Idmap, "shift the owner of the workspace"))
}

/// A socket of the guest's, bound by relative name: a home may be deeper than a socket's path may be long.
fn listen(name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::unlink(name) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(name)?);
    rustix::process::umask(mask);
    bound?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Forks a helper that does its work, tells how it went, and ends.
fn helper(
    namespaces: u64,
    work: impl FnOnce() -> Result<Told, Failure>,
    allow: impl FnOnce(i32) -> Result<(), Failure>,
) -> Result<Forked, Failure> {
    let (reader, status) = io::pipe().map_err(Failure::at(Step::Listen, "make a pipe"))?;
    let (mut waits, goes) = io::pipe().map_err(Failure::at(Step::Listen, "make a pipe"))?;
    match sys::clone_into(namespaces, None).map_err(Failure::at(Step::Namespaces, "fork a helper"))? {
        Cloned::Child => {
            drop(goes);
            // One byte: go. The end: the parent could not prepare us, and has told why.
            match waits.read(&mut [0]) {
                Ok(1) => tell(&status, work()),
                _ => sys::exit(1),
            }
        }
        Cloned::Parent { pid, pidfd } => {
            allow(pid)?;
            rustix::io::write(&goes, b"g")
                .map_err(|errno| Failure::at(Step::Listen, "let a helper go")(errno.into()))?;
            Ok((pidfd, reader.into()))
        }
    }
}

/// Enters a warm sandbox and gives it its name and workspace. Nothing has run in it yet, so nothing in there can have
/// prepared for this.
pub(crate) fn bind(bind: Bind, fds: Vec<OwnedFd>) -> Result<Forked, Failure> {
    let mut fds = fds.into_iter();
    let guest = fds.next().ok_or_else(incomplete)?;
    let tree = match (&bind.workspace, fds.next()) {
        (Some(bound), Some(tree)) => Some(workspace(&tree, bound.owner, bind.uids, bind.user)?),
        (None, None) => None,
        _ => return Err(incomplete()),
    };
    let work = move || {
        let failed = |what: &str| Failure::at(Step::Bind, what.to_owned());
        let mut namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
        if matches!(bind.uids, Uids::One { .. }) {
            namespaces |= libc::CLONE_NEWUSER;
        }
        sys::enter(&guest, namespaces).map_err(failed("enter the sandbox"))?;
        rustix::system::sethostname(bind.hostname.as_bytes())
            .map_err(|errno| failed("set the host name")(errno.into()))?;
        sandbar_guest::name_host(&bind.hostname).ok();
        if let Some(tree) = tree {
            let place = rustix::fs::open("/workspace", directory::PATH, Mode::empty());
            let place = place.map_err(|errno| failed("find the workspace")(errno.into()))?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&tree, "", &place, "", flags).map_err(|errno| failed("attach the workspace")(errno.into()))?;
        }
        Ok(Told::Done)
    };
    helper(0, work, |_| Ok(()))
}

fn exists(directory: &OwnedFd, name: &str) -> bool {
    let found = rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    !matches!(found, Err(rustix::io::Errno::NOENT))
}

/// Copies a sandbox's files, as somebody who may read all of them.
pub(crate) fn keep(keep: &Keep, fds: Vec<OwnedFd>) -> Result<Forked, Failure> {
    let [from, to] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| incomplete())?;
    let work = move || {
        let mut bytes = 0;
        for name in directory::KEPT {
            match copy::tree(&from, &to, name) {
                Ok(copied) => bytes += copied.bytes,
                // Not every sandbox has all of them.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !exists(&from, name) => {}
                Err(error) => return Err(Failure::at(Step::Keep, "copy the sandbox's files")(error)),
            }
        }
        Ok(Told::Kept(bytes))
    };
    match keep.uids {
        Uids::Range(_) => helper(0, work, |_| Ok(())),
        // The files are ours, but their modes may keep us out; not whoever has capabilities over them.
        Uids::One { uid, gid } => helper(libc::CLONE_NEWUSER as u64, work, move |pid| {
            let write = |file: &str, text: String| {
                fs::write(format!("/proc/{pid}/{file}"), text)
                    .map_err(Failure::at(Step::UidMap, format!("write {file}")))
            };
            write("setgroups", "deny".into())?;
            write("uid_map", format!("{uid} {uid} 1\n"))?;
            write("gid_map", format!("{gid} {gid} 1\n"))
        }),
    }
}
