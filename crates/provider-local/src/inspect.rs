//! The enforcement report: what a process inside finds around it, next to what was asked. Conclusions are drawn here,
//! from what the guest's probe saw and from what the kernel says about the sandbox's groups; never from a configuration.

use std::{collections::HashMap, fs};

use sandbar_api::{Layer, LayerReport, Requirement, Root, User};
use sandbar_guest::protocol::ProbeRequest;
use sandbar_provider::{Error, Provider as _, Spec};

use crate::{
    cgroup::{Controller, InForce, wanted},
    local::Local,
    probe,
    uids::Uids,
};

/// Capabilities that root inside may have, as `/proc/PID/status` shows them.
const ROOT_CAPABILITIES: u64 = 0b1101_1011;
/// What no filter of ours lets through.
const FORBIDDEN: [&str; 8] =
    ["bpf", "io_uring", "perf_event", "keyctl", "userfaultfd", "ptrace", "unshare_user", "clone3"];

pub(crate) async fn inspect(local: &Local, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
    let mut guest = local.connect(&spec.id).await?;
    let failed = |status: tonic::Status| {
        let old = status.code() == tonic::Code::Unimplemented;
        let cause = if old { "it was started by an older version; stop and start it" } else { status.message() };
        Error::Unreachable { id: spec.id.clone(), cause: cause.to_owned() }
    };
    let facts = guest.probe(ProbeRequest::default()).await.map_err(failed)?.into_inner().facts;
    let groups = &local.shared.groups;
    let host = Host {
        ranges: matches!(local.record(&spec.id)?.uids, Uids::Range(_)),
        namespaces: ["user", "mnt", "pid", "net", "ipc", "uts"].map(|name| (name, own_namespace(name))).into(),
        limits: Controller::ALL.map(|controller| (controller, groups.in_force(&spec.id, controller))).into(),
        id: spec.id.to_string(),
    };
    Ok(Layer::ALL.iter().map(|layer| judge(*layer, spec, &Facts(&facts), &host)).collect())
}

fn own_namespace(name: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{name}")).map(|link| link.display().to_string()).unwrap_or_default()
}

/// What the server sees from outside.
struct Host {
    ranges: bool,
    namespaces: HashMap<&'static str, String>,
    limits: Vec<(Controller, Option<InForce>)>,
    id: String,
}

struct Facts<'a>(&'a HashMap<String, String>);

impl Facts<'_> {
    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("not seen", String::as_str)
    }

    /// An attempt that came to nothing. One that was never made counts as one that went through.
    fn refused(&self, name: &str) -> bool {
        self.0.get(&format!("try.{name}")).is_some_and(|outcome| outcome != "ok")
    }

    fn tried(&self, name: &str) -> &str {
        self.get(&format!("try.{name}"))
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.split_whitespace().last()?.parse().ok()
    }

    fn set(&self, field: &str) -> Option<u64> {
        u64::from_str_radix(self.0.get(&format!("status.{field}"))?, 16).ok()
    }
}

fn judge(layer: Layer, spec: &Spec, facts: &Facts<'_>, host: &Host) -> LayerReport {
    let requirement = spec.requirement(layer);
    let (in_force, evidence) = match layer {
        layer if layer.is_limit() && requirement == Requirement::Off => (false, "no limit is stated".into()),
        Layer::Users => users(facts, host),
        Layer::Mounts => {
            let (other, seen) = namespace("mnt", facts, host);
            // Root inside has a /usr of its own to write to; the host's is out of its reach.
            let programs = spec.user == User::Root || facts.refused("write_usr");
            let (root, write) = (facts.get("mount.root"), facts.tried("write_usr"));
            let own = root.starts_with("overlay ");
            // Of one that an earlier version made, or where the kernel lets an ordinary user have it in no other way.
            let shares = spec.root == Root::Host && !facts.get("mount.usr").starts_with("overlay ");
            let shares = if shares { "; /usr is the host's own, so its locks and events are shared" } else { "" };
            (other && own && programs, format!("{seen}; / is {root}; write to /usr: {write}{shares}"))
        }
        Layer::PidNamespace => {
            let (other, seen) = namespace("pid", facts, host);
            (other, format!("{seen}; {} processes in sight", facts.get("pids")))
        }
        Layer::NetNamespace => namespace("net", facts, host),
        Layer::IpcNamespace => namespace("ipc", facts, host),
        Layer::UtsNamespace => {
            let (other, seen) = namespace("uts", facts, host);
            (other, format!("{seen}; host name {}", facts.get("hostname")))
        }
        Layer::Network => {
            let (interfaces, routes) = (facts.get("interfaces"), facts.get("routes"));
            (interfaces == "lo" && routes == "0", format!("interfaces: {interfaces}; routes beyond it: {routes}"))
        }
        Layer::Capabilities => capabilities(facts, spec.user),
        Layer::NoNewPrivs => {
            let value = facts.get("status.NoNewPrivs");
            (value == "1", format!("NoNewPrivs {value}"))
        }
        Layer::Seccomp => seccomp(facts),
        Layer::Landlock => {
            let (write, abi) = (facts.tried("write_proc"), facts.get("landlock.abi"));
            (write == "EACCES", format!("ABI {abi}; write to /proc/self/comm, which only Landlock forbids: {write}"))
        }
        Layer::ReadOnlyRoot => {
            let (write, programs) = (facts.tried("write_root"), facts.tried("write_usr"));
            (write == "EROFS" && programs == "EROFS", format!("create a file in /: {write}; in /usr: {programs}"))
        }
        Layer::NoExec => {
            let execute = facts.tried("exec_tmp");
            (facts.refused("exec_tmp"), format!("map a file of /tmp for execution: {execute}"))
        }
        Layer::Memory => group(Controller::Memory, spec, facts, host),
        Layer::Cpu => group(Controller::Cpu, spec, facts, host),
        Layer::Processes => group(Controller::Processes, spec, facts, host),
        Layer::OpenFiles => {
            let limit = facts.number("rlimit.nofile");
            let wanted = spec.limits.open_files.map(u64::from);
            (limit <= wanted && limit.is_some(), format!("RLIMIT_NOFILE {}", facts.get("rlimit.nofile")))
        }
        Layer::Tmpfs => sized("statfs.tmp", "/tmp", spec.limits.tmpfs.map(|size| size.0), facts),
        Layer::Disk => sized("statfs.root", "/", spec.limits.disk.map(|size| size.0), facts),
    };
    let missing = !in_force && requirement != Requirement::Off;
    let fix = missing.then(|| probe::fix(layer).to_owned());
    LayerReport { layer, requirement, in_force, evidence, fix }
}

fn users(facts: &Facts<'_>, host: &Host) -> (bool, String) {
    let (uid, map) = (facts.get("status.Uid"), facts.get("uid_map"));
    let evidence = match host.ranges {
        true => format!("Uid {uid}; uid_map {map}"),
        false => format!("one uid, shared with the guest and all sandboxes of this user: Uid {uid}; uid_map {map}"),
    };
    (host.ranges && map.ends_with(" 65536"), evidence)
}

/// One that is not the server's.
fn namespace(name: &str, facts: &Facts<'_>, host: &Host) -> (bool, String) {
    let (inside, outside) = (facts.get(&format!("ns.{name}")), host.namespaces.get(name).map_or("", String::as_str));
    let other = inside.starts_with(name) && !outside.is_empty() && inside != outside;
    (other, format!("{inside} (the server: {outside})"))
}

fn capabilities(facts: &Facts<'_>, user: User) -> (bool, String) {
    let allowed = match user {
        User::Agent => 0,
        User::Root => ROOT_CAPABILITIES,
    };
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let within = sets.iter().all(|set| facts.set(set).is_some_and(|bits| bits & !allowed == 0));
    let seen: Vec<_> = ["CapEff", "CapBnd"].map(|set| format!("{set} {}", facts.get(&format!("status.{set}")))).into();
    let note = if user == User::Root { "; root inside, with what package managers need" } else { "" };
    (within, format!("{}{note}", seen.join(", ")))
}

fn seccomp(facts: &Facts<'_>) -> (bool, String) {
    let mode = facts.get("status.Seccomp");
    let open: Vec<_> = FORBIDDEN.into_iter().filter(|name| !facts.refused(name)).collect();
    let evidence = match open.is_empty() {
        true => format!("Seccomp {mode} (2 is a filter); refused: {}", FORBIDDEN.join(" ")),
        false => format!("Seccomp {mode} (2 is a filter); went through: {}", open.join(" ")),
    };
    (mode == "2" && open.is_empty(), evidence)
}

/// The kernel has the limit that was asked for, or a lower one, and the probe was among those it binds.
fn group(controller: Controller, spec: &Spec, facts: &Facts<'_>, host: &Host) -> (bool, String) {
    let Some(limit) = host.limits.iter().find(|(known, _)| *known == controller).and_then(|(_, limit)| limit.clone())
    else {
        return (false, "the sandbox has no control group with this limit".into());
    };
    let member = facts.get("cgroup").split(';').any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match limit.unified {
            true => names.is_empty() && (path.contains(&host.id) || path.ends_with("/work")),
            false => names.split(',').any(|name| name == controller.as_str()) && path.contains(&host.id),
        }
    });
    let number = |text: &str| text.parse::<u64>().ok();
    let asked = wanted(&spec.limits).into_iter().find(|(known, _)| *known == controller);
    let asked = asked.and_then(|(_, value)| number(&value));
    let binds = number(&limit.value).zip(asked).is_some_and(|(limit, asked)| limit <= asked);
    let seen =
        format!("{} {}; the probe {} in the group", limit.file, limit.value, if member { "is" } else { "is not" });
    (member && binds, seen)
}

fn sized(key: &str, place: &str, wanted: Option<u64>, facts: &Facts<'_>) -> (bool, String) {
    let size = facts.number(key);
    (size <= wanted && size.is_some(), format!("{place} has {} bytes in all", facts.get(key)))
}

#[cfg(test)]
mod tests {
    use sandbar_api::{HumanSize, Limits, SandboxId};

    use super::*;

    const GOOD: &[(&str, &str)] = &[
        ("status.Uid", "1000 1000 1000 1000"),
        ("uid_map", "0 1879048192 65536"),
        ("ns.mnt", "mnt:[2]"),
        ("ns.pid", "pid:[2]"),
        ("ns.net", "net:[2]"),
        ("ns.ipc", "ipc:[2]"),
        ("ns.uts", "uts:[2]"),
        ("interfaces", "lo"),
        ("routes", "0"),
        ("status.CapInh", "0000000000000000"),
        ("status.CapPrm", "0000000000000000"),
        ("status.CapEff", "0000000000000000"),
        ("status.CapBnd", "0000000000000000"),
        ("status.CapAmb", "0000000000000000"),
        ("status.NoNewPrivs", "1"),
        ("status.Seccomp", "2"),
        ("mount.root", "overlay rw,nosuid,nodev"),
        ("mount.usr", "overlay ro,nosuid,nodev"),
        ("try.write_usr", "EROFS"),
        ("try.bpf", "EPERM"),
        ("try.io_uring", "EPERM"),
        ("try.perf_event", "EPERM"),
        ("try.keyctl", "EPERM"),
        ("try.userfaultfd", "EPERM"),
        ("try.ptrace", "EPERM"),
        ("try.unshare_user", "EPERM"),
        ("try.clone3", "ENOSYS"),
        ("try.write_proc", "EACCES"),
        ("try.write_root", "EROFS"),
        ("try.exec_tmp", "EPERM"),
        ("cgroup", "4:memory:/../sbx-x;0::/work"),
        ("statfs.tmp", "1048576"),
        ("rlimit.nofile", "64 64"),
    ];

    fn report(change: (&str, &str)) -> Vec<Layer> {
        let mut facts: HashMap<_, _> =
            GOOD.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        facts.insert(change.0.to_owned(), change.1.to_owned());
        let limits = Limits {
            memory: Some(HumanSize(1 << 20)),
            tmpfs: Some(HumanSize(1 << 20)),
            open_files: Some(64),
            ..Limits::default()
        };
        let spec = Spec { limits, ..Spec::standard(SandboxId::from_parts(1, [0; 10]), "x") };
        let value = facts.remove("limit").unwrap_or_else(|| "1048576".into());
        let limit = InForce { unified: false, file: "memory.limit_in_bytes", value };
        let host = Host {
            ranges: true,
            namespaces: ["mnt", "pid", "net", "ipc", "uts"].map(|name| (name, format!("{name}:[1]"))).into(),
            limits: vec![(Controller::Memory, Some(limit))],
            id: "sbx-x".into(),
        };
        let reports = Layer::ALL.iter().map(|layer| judge(*layer, &spec, &Facts(&facts), &host));
        reports
            .filter(|report| !report.in_force && report.requirement != Requirement::Off)
            .map(|report| report.layer)
            .collect()
    }

    #[test]
    fn what_is_not_seen_inside_is_not_in_force() {
        assert_eq!(report(("x", "y")), []);
        for (key, value, layer) in [
            ("uid_map", "1000 0 1", Layer::Users),
            ("ns.pid", "pid:[1]", Layer::PidNamespace),
            ("ns.net", "not seen", Layer::NetNamespace),
            ("mount.root", "ext4 rw", Layer::Mounts),
            ("try.write_usr", "ok", Layer::Mounts),
            ("status.CapBnd", "00000000a80425fb", Layer::Capabilities),
            ("status.NoNewPrivs", "0", Layer::NoNewPrivs),
            ("status.Seccomp", "0", Layer::Seccomp),
            ("try.io_uring", "ok", Layer::Seccomp),
            ("try.write_proc", "ok", Layer::Landlock),
            ("interfaces", "lo eth0", Layer::Network),
            ("routes", "1", Layer::Network),
            ("cgroup", "4:memory:/;0::/", Layer::Memory),
            ("cgroup", "4:memory:/;0::/work", Layer::Memory),
            ("limit", "9223372036854771712", Layer::Memory),
            ("limit", "max", Layer::Memory),
            ("statfs.tmp", "2097152", Layer::Tmpfs),
            ("rlimit.nofile", "64 1024", Layer::OpenFiles),
        ] {
            assert_eq!(report((key, value)), [layer], "{key} {value}");
        }
    }
}
