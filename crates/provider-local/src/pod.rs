//! The guest of a sandbox that is a pod. Kubernetes has made the view, the namespaces and the limits; what an ordinary user
//! can still do to what it starts is done here: no_new_privs, Landlock, seccomp, limits of open files and core files. The
//! guest has the workload's own uid, so that it is not dumpable matters as much as in a sandbox with one uid.

mod install;
mod settings;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Display,
    fs::{self, File},
    io,
    net::TcpListener,
    os::fd::OwnedFd,
    path::Path,
};

use rustix::process::{DumpableBehavior, PidfdFlags};
use sandbar_api::{Layer, Requirement, User};
use sandbar_guest::{Confine, Entrance, Gate, Setup};
use sandbar_provider::Error;

use crate::{
    boot,
    fence::{Fence, Wanted},
    step::{Failure, Step},
    uids::Uids,
    view,
};
use settings::Server;
pub use settings::Settings;

/// Where Kubernetes reads why a container ended.
const LAST_WORDS: &str = "/dev/termination-log";
const TRUST: &str = "/run/sandbar";

/// `sandbar guest …`: to be called before anything else, in a process with one thread.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ! {
    let verb = arguments.next().unwrap_or_default();
    match verb.to_str() {
        Some("pod") => match Settings::read(arguments, std::env::vars_os()) {
            Ok(settings) => run(settings),
            Err(error) => fail(2, &error),
        },
        Some("install") => match install::install(arguments) {
            Ok(()) => std::process::exit(0),
            Err(error) => fail(1, &error),
        },
        _ => fail(2, &"`sandbar guest` is `pod` or `install DIRECTORY`, for containers of sandboxes"),
    }
}

/// Serves until it is asked to end, or cannot go on.
pub fn run(settings: Settings) -> ! {
    match prepare(settings)
        .map_err(|error| told(&error))
        .and_then(|setup| sandbar_guest::serve(setup).map_err(|error| format!("the guest failed: {error}")))
    {
        Ok(()) => std::process::exit(0),
        Err(error) => fail(1, &error),
    }
}

fn told(error: &Error) -> String {
    match error {
        Error::NotEnforceable { fix, .. } => format!("{error}. {fix}"),
        Error::BadSpec { fix, .. } => format!("{error}. {fix}"),
        Error::Io { source, .. } => format!("{error}: {source}"),
        other => other.to_string(),
    }
}

/// In the container's log and, where there is one, in the pod's status.
fn fail(code: i32, error: &dyn Display) -> ! {
    let line = format!("sandbar guest: {error}\n");
    rustix::io::write(rustix::stdio::stderr(), line.as_bytes()).ok();
    if let Ok(mut file) = File::options().write(true).truncate(true).open(LAST_WORDS) {
        io::Write::write_all(&mut file, line.as_bytes()).ok();
    }
    std::process::exit(code)
}

fn prepare(settings: Settings) -> Result<Setup, Error> {
    let Settings { server, layers, open_files, runtimes, env, home, user } = settings;
    let failed = |action: &'static str| Error::io(action);
    // First of all: who else is in this container has our uid.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| failed("become undumpable")(errno.into()))?;
    let null = File::open("/dev/null").map_err(failed("open /dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(|errno| failed("close standard input")(errno.into()))?;
    boot::forbid_core_files().map_err(Failure::into_error)?;
    has_what_it_takes()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let (mut entrance, mut gate, mut trust) = (None, None, None);
    if let Some(Server { listen, keys }) = server {
        let listener = TcpListener::bind(listen).map_err(Error::io(format!("listen on {listen}")))?;
        entrance = Some(Entrance::Tls { listener: listener.into(), server_keys: keys });
        let listener = boot::gate().map_err(failed("listen for programs that want out"))?;
        gate = Some(Gate::Carried { listener });
        trust = place_for_certificates();
    }
    let roots: Vec<String> = runtimes.iter().flat_map(|(request, _)| roots(request)).collect();
    let uids = Uids::One { uid, gid };
    let confine = fence(&layers, Wanted { uids, user: User::Agent, layers: &layers, open_files, writable: &roots })?;
    Ok(Setup {
        sandbox_id: None,
        version: env!("CARGO_PKG_VERSION").into(),
        entrance,
        uid,
        gid,
        home,
        user,
        env,
        confine,
        group: None,
        oom: None,
        gate,
        trust,
        runtimes,
        ends: true,
    })
}

/// Processes are watched and ended by handles, which a kernel in user space may lack: better said now than at each start.
fn has_what_it_takes() -> Result<(), Error> {
    match rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
        Ok(_) => Ok(()),
        Err(errno) => {
            let version = fs::read_to_string("/proc/version").unwrap_or_default();
            Err(Error::NotEnforceable {
                layer: "the control of processes",
                cause: format!("pidfd_open: {errno}, on {}", version.trim()),
                fix: "Use a runtime class whose kernel has pidfd_open, a newer runsc for example.".into(),
            })
        }
    }
}

fn roots(request: &sandbar_guest::protocol::ServeRequest) -> Vec<String> {
    let sandboxd = request.sandboxd.iter().map(|asked| asked.root.clone());
    sandboxd.chain(request.legacy.iter().map(|asked| asked.root.clone())).collect()
}

/// What the template's author has to hear when the pod itself lacks what is asked of it; the rest is the fence's.
fn fence(layers: &BTreeMap<Layer, Requirement>, wanted: Wanted<'_>) -> Result<Box<dyn Confine>, Error> {
    let asked = |layer| layers.get(&layer).copied().unwrap_or(Requirement::Off);
    let lacking = |layer: Layer, cause: &str, fix: &str| Error::NotEnforceable {
        layer: layer.title(),
        cause: cause.into(),
        fix: fix.into(),
    };
    if asked(Layer::NoExec) == Requirement::Required {
        let fix = "Make `no_exec` optional or off in the template's [layers].";
        return Err(lacking(Layer::NoExec, "volumes of a pod cannot be mounted noexec", fix));
    }
    if asked(Layer::ReadOnlyRoot) == Requirement::Required && !is_read_only("/") {
        let fix = "Set readOnlyRootFilesystem in the container's securityContext.";
        return Err(lacking(Layer::ReadOnlyRoot, "the container's root can be written to", fix));
    }
    let compiled = Fence::compile().map_err(|error| Error::io("compile the fence")(io::Error::other(error)))?;
    compiled.arm(&wanted).map_err(in_a_pod)
}

fn is_read_only(path: &str) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Where it differs from a host, what to do about it.
fn in_a_pod(failure: Failure) -> Error {
    let fix = match failure.step {
        Step::Landlock => {
            "Use nodes with kernel 6.2 or newer and landlock in their `lsm=` list, or make `landlock` optional in the \
             template's [layers], as gVisor needs it."
        }
        Step::Capabilities => "Set capabilities.drop to [ALL] in the container's securityContext.",
        Step::Seccomp => {
            "Use nodes whose kernel has CONFIG_SECCOMP_FILTER, or make `seccomp` optional in the template."
        }
        _ => return failure.into_error(),
    };
    match failure.into_error() {
        Error::NotEnforceable { layer, cause, .. } => Error::NotEnforceable { layer, cause, fix: fix.into() },
        other => other,
    }
}

/// Without it the sandbox works, but for programs that have to trust the gate: their server is told when it asks.
fn place_for_certificates() -> Option<OwnedFd> {
    let opened = view::put_trust(Path::new(TRUST)).and_then(|()| Ok(OwnedFd::from(fs::File::open(TRUST)?)));
    match opened {
        Ok(directory) => Some(directory),
        Err(error) => {
            let line = format!(
                "sandbar guest: certificates cannot be kept in {TRUST}: {error}; mount an emptyDir there that uid {} may \
                 write to\n",
                rustix::process::getuid().as_raw(),
            );
            rustix::io::write(rustix::stdio::stderr(), line.as_bytes()).ok();
            None
        }
    }
}
