//! Conclusions about each layer of a pod, from what a process inside found. Never from a configuration: a cluster may
//! accept a NetworkPolicy, a RuntimeClass or a limit and enforce none of them.

use sandbar_api::{Layer, LayerReport, Requirement};
use sandbar_guest::protocol::NOT_AN_ADDRESS;
use sandbar_provider::Spec;

use super::Facts;

/// What no filter of ours lets through.
const FORBIDDEN: [&str; 8] =
    ["bpf", "io_uring", "perf_event", "keyctl", "userfaultfd", "ptrace", "unshare_user", "clone3"];
/// What the kernel calls the namespaces that a node booted with, where those are fixed.
const INITIAL: [(&str, &str); 4] = [
    ("pid", "pid:[4026531836]"),
    ("uts", "uts:[4026531838]"),
    ("ipc", "ipc:[4026531839]"),
    ("mnt", "mnt:[4026531840]"),
];
/// A user namespace that is the node's own maps everybody to themselves.
const EVERYBODY: &str = "0 0 4294967295";
/// Filesystems hold back room for themselves, and never give more than the volume has.
const SLACK: u64 = 1 << 20;
/// Processors are granted in thousandths.
const ROUNDING: f64 = 0.0011;

/// What the server knows of the pod besides.
pub(crate) struct View {
    /// The pod's name, which is its host name.
    pub(crate) pod: String,
    /// The server's own namespaces, which are the node's if it runs there without a pod.
    pub(crate) server: Vec<(&'static str, String)>,
}

pub(crate) fn judge(layer: Layer, spec: &Spec, facts: &Facts, view: &View) -> LayerReport {
    let requirement = spec.requirement(layer);
    let (in_force, evidence) = match layer {
        layer if layer.is_limit() && requirement == Requirement::Off => (false, "no limit is stated".into()),
        other => seen(other, spec, facts, view),
    };
    let missing = !in_force && requirement != Requirement::Off;
    LayerReport { layer, requirement, in_force, evidence, fix: missing.then(|| fix(layer, facts).to_owned()) }
}

fn seen(layer: Layer, spec: &Spec, facts: &Facts, view: &View) -> (bool, String) {
    match layer {
        Layer::Users => {
            let (uid, map) = (facts.get("status.Uid"), facts.get("uid_map"));
            let own = map != "not seen" && !map.starts_with("error") && map != EVERYBODY;
            let note = if own { "" } else { "one uid, shared with the guest and other pods of the node: " };
            (own && !uid.starts_with("0 "), format!("{note}Uid {uid}; uid_map {map}"))
        }
        Layer::Mounts => {
            let (own, seen) = namespace("mnt", facts, view);
            let (root, write) = (facts.get("mount.root"), facts.tried("write_usr"));
            (own && facts.refused("write_usr"), format!("{seen}; / is {root}; write to /usr: {write}"))
        }
        Layer::PidNamespace => {
            let (own, seen) = namespace("pid", facts, view);
            let first = facts.get("pid1");
            (own && first == "sandbar", format!("{seen}; process 1 is {first}; {} in sight", facts.get("pids")))
        }
        Layer::NetNamespace => namespace("net", facts, view),
        Layer::IpcNamespace => namespace("ipc", facts, view),
        Layer::UtsNamespace => {
            let (own, seen) = namespace("uts", facts, view);
            let name = facts.get("hostname");
            (own && view.pod.starts_with(name), format!("{seen}; host name {name}"))
        }
        Layer::Network => network(facts),
        Layer::Capabilities => {
            let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
            let none = sets.iter().all(|set| facts.set(set) == Some(0));
            (none, ["CapEff", "CapBnd"].map(|set| format!("{set} {}", facts.get(&format!("status.{set}")))).join(", "))
        }
        Layer::NoNewPrivs => {
            let value = facts.get("status.NoNewPrivs");
            (value == "1", format!("NoNewPrivs {value}"))
        }
        Layer::Seccomp => {
            let mode = facts.get("status.Seccomp");
            let open: Vec<_> = FORBIDDEN.into_iter().filter(|name| !facts.refused(name)).collect();
            let told = if open.is_empty() { "refused: " } else { "went through: " };
            let names = if open.is_empty() { FORBIDDEN.join(" ") } else { open.join(" ") };
            (mode == "2" && open.is_empty(), format!("Seccomp {mode} (2 is a filter); {told}{names}"))
        }
        Layer::Landlock => {
            let (write, abi) = (facts.tried("write_proc"), facts.get("landlock.abi"));
            (write == "EACCES", format!("ABI {abi}; write to /proc/self/comm, which only Landlock forbids: {write}"))
        }
        Layer::ReadOnlyRoot => {
            let (root, programs) = (facts.tried("write_root"), facts.tried("write_usr"));
            (root == "EROFS" && programs == "EROFS", format!("create a file in /: {root}; in /usr: {programs}"))
        }
        Layer::NoExec => {
            (facts.refused("exec_tmp"), format!("map a file of /tmp for execution: {}", facts.tried("exec_tmp")))
        }
        Layer::Memory => {
            let (limit, wanted) = (facts.number("limit.memory"), spec.limits.memory.map(|size| size.0));
            (limit.is_some() && limit <= wanted, format!("the control group allows {}", facts.get("limit.memory")))
        }
        Layer::Cpu => {
            let (limit, wanted) = (processors(facts.get("limit.cpu")), spec.limits.cpus);
            let within = limit.zip(wanted).is_some_and(|(limit, wanted)| limit <= wanted + ROUNDING);
            (within, format!("the control group allows {} (quota and period)", facts.get("limit.cpu")))
        }
        Layer::Processes => (false, "a pod has no limit of its own".into()),
        Layer::OpenFiles => {
            let (limit, wanted) = (facts.number("rlimit.nofile"), spec.limits.open_files.map(u64::from));
            (limit.is_some() && limit <= wanted, format!("RLIMIT_NOFILE {}", facts.get("rlimit.nofile")))
        }
        Layer::Tmpfs => sized("statfs.tmp", "/tmp", spec.limits.tmpfs.map(|size| size.0), facts),
        Layer::Disk => sized("statfs.workspace", "/workspace", spec.limits.disk.map(|size| size.0), facts),
    }
}

/// One that is neither the server's nor the one that its node booted with.
fn namespace(name: &str, facts: &Facts, view: &View) -> (bool, String) {
    let inside = facts.get(&format!("ns.{name}"));
    let known = |(of, link): (&str, &str)| of == name && link == inside;
    let node = INITIAL.into_iter().any(known) || view.server.iter().any(|(of, link)| known((of, link)));
    (inside.starts_with(&format!("{name}:[")) && !node, inside.to_owned())
}

/// There is an interface that leads nowhere: nothing that is known to listen can be reached.
fn network(facts: &Facts) -> (bool, String) {
    let interfaces = facts.get("interfaces");
    if interfaces == "lo" && facts.get("routes") == "0" {
        return (true, "interfaces: lo; routes beyond it: 0".into());
    }
    let asked = facts.reached();
    let told: Vec<_> = asked.iter().map(|(address, outcome)| format!("{address}: {outcome}")).collect();
    let attempts = if told.is_empty() { "nothing was tried".to_owned() } else { told.join(", ") };
    let closed = tried_to_reach(facts) && !asked.iter().any(|(_, outcome)| *outcome == "ok");
    (closed, format!("interfaces: {interfaces}; connect to {attempts}"))
}

/// Whether there was anything to connect to.
fn tried_to_reach(facts: &Facts) -> bool {
    facts.reached().iter().any(|(_, outcome)| !outcome.starts_with(NOT_AN_ADDRESS))
}

/// Quota over period.
fn processors(limit: &str) -> Option<f64> {
    let (quota, period) = limit.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn sized(key: &str, place: &str, wanted: Option<u64>, facts: &Facts) -> (bool, String) {
    let size = facts.number(key);
    let within = size.zip(wanted).is_some_and(|(size, wanted)| size <= wanted.saturating_add(SLACK));
    (within, format!("{place} has {} bytes in all", facts.get(key)))
}

fn fix(layer: Layer, facts: &Facts) -> &'static str {
    match layer {
        Layer::Users => {
            "Use nodes with user namespaces for pods (containerd 2, Kubernetes 1.33), or a RuntimeClass that has them."
        }
        Layer::Network if !tried_to_reach(facts) => {
            "Use the guest image of this server's version, and let nothing take KUBERNETES_SERVICE_HOST and \
             KUBERNETES_SERVICE_PORT from its container: they name the one thing that listens in every cluster."
        }
        Layer::Network => {
            "Install a network plugin that enforces NetworkPolicy; `sandbar kubernetes check` observes whether it does."
        }
        Layer::Landlock => {
            "Use nodes with Linux 6.2 or later and `landlock` among their LSMs, or make the layer optional."
        }
        Layer::NoExec => "Leave it off: a pod's volumes are executable.",
        Layer::Seccomp => "Use nodes whose kernel has seccomp filters.",
        Layer::Memory | Layer::Cpu => "Use nodes whose kubelet enforces limits by control groups.",
        Layer::Processes => "Set podPidsLimit on the nodes, and leave `limits.processes` out.",
        Layer::Disk => {
            "Use a storage class whose volumes have the size that was asked for, or leave `limits.disk` out."
        }
        Layer::Tmpfs => "Use nodes that size memory volumes (Kubernetes 1.32), or leave `limits.tmpfs` out.",
        Layer::OpenFiles => "Use the guest image of this server's version.",
        _ => {
            "Something changed the pod after it was asked for: look at the cluster's admission webhooks, and at the pod's spec."
        }
    }
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
        ("pid1", "sandbar"),
        ("hostname", "sbx-1"),
        ("interfaces", "lo eth0"),
        ("routes", "2"),
        ("reach.10.96.0.1:443", "ETIMEDOUT"),
        ("status.CapInh", "0000000000000000"),
        ("status.CapPrm", "0000000000000000"),
        ("status.CapEff", "0000000000000000"),
        ("status.CapBnd", "0000000000000000"),
        ("status.CapAmb", "0000000000000000"),
        ("status.NoNewPrivs", "1"),
        ("status.Seccomp", "2"),
        ("mount.root", "overlay ro"),
        ("try.write_usr", "EROFS"),
        ("try.write_root", "EROFS"),
        ("try.bpf", "EPERM"),
        ("try.io_uring", "EPERM"),
        ("try.perf_event", "EPERM"),
        ("try.keyctl", "EPERM"),
        ("try.userfaultfd", "EPERM"),
        ("try.ptrace", "EPERM"),
        ("try.unshare_user", "EPERM"),
        ("try.clone3", "ENOSYS"),
        ("try.write_proc", "EACCES"),
        ("try.exec_tmp", "EACCES"),
        ("limit.memory", "1048576"),
        ("limit.cpu", "150000 100000"),
        ("statfs.tmp", "1048576"),
        ("statfs.workspace", "1073741824"),
        ("rlimit.nofile", "64 64"),
    ];

    fn missing(change: (&str, &str)) -> Vec<Layer> {
        let known = GOOD.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut facts = Facts(known.collect());
        facts.0.insert(change.0.to_owned(), change.1.to_owned());
        facts.0.retain(|_, value| !value.is_empty());
        let limits = Limits {
            memory: Some(HumanSize(1 << 20)),
            cpus: Some(1.5),
            tmpfs: Some(HumanSize(1 << 20)),
            disk: Some(HumanSize(1 << 30)),
            open_files: Some(64),
            ..Limits::default()
        };
        let mut spec = Spec { limits, ..Spec::standard(SandboxId::from_parts(1, [0; 10]), "x") };
        for layer in [Layer::ReadOnlyRoot, Layer::NoExec] {
            spec.layers.insert(layer, Requirement::Required);
        }
        let view = View { pod: "sbx-1".into(), server: vec![("net", "net:[1]".into())] };
        let reports = Layer::ALL.iter().map(|layer| judge(*layer, &spec, &facts, &view));
        let missing = reports.filter(|report| !report.in_force && report.requirement != Requirement::Off);
        missing
            .map(|report| {
                assert!(report.fix.is_some());
                report.layer
            })
            .collect()
    }

    #[test]
    fn what_is_not_seen_inside_is_not_in_force() {
        assert_eq!(missing(("x", "y")), []);
        for (key, value, layer) in [
            ("uid_map", "0 0 4294967295", Layer::Users),
            ("uid_map", "", Layer::Users),
            ("ns.pid", "pid:[4026531836]", Layer::PidNamespace),
            ("pid1", "systemd", Layer::PidNamespace),
            ("ns.net", "net:[1]", Layer::NetNamespace),
            ("ns.ipc", "", Layer::IpcNamespace),
            ("hostname", "node-1", Layer::UtsNamespace),
            ("ns.mnt", "mnt:[4026531840]", Layer::Mounts),
            ("reach.10.96.0.1:443", "ok", Layer::Network),
            ("reach.10.96.0.1:443", "", Layer::Network),
            ("reach.10.0.0.9:6443", "ok", Layer::Network),
            ("reach.10.96.0.1:443", "not an address", Layer::Network),
            ("reach.10.96.0.1:443", "not an address: KUBERNETES_SERVICE_HOST is not set", Layer::Network),
            ("status.CapBnd", "00000000a80425fb", Layer::Capabilities),
            ("status.NoNewPrivs", "0", Layer::NoNewPrivs),
            ("status.Seccomp", "0", Layer::Seccomp),
            ("try.bpf", "ok", Layer::Seccomp),
            ("try.keyctl", "", Layer::Seccomp),
            ("try.write_proc", "ok", Layer::Landlock),
            ("try.write_root", "ok", Layer::ReadOnlyRoot),
            ("try.exec_tmp", "ok", Layer::NoExec),
            ("limit.memory", "2097152", Layer::Memory),
            ("limit.memory", "max", Layer::Memory),
            ("limit.cpu", "max 100000", Layer::Cpu),
            ("limit.cpu", "200000 100000", Layer::Cpu),
            ("rlimit.nofile", "64 1024", Layer::OpenFiles),
            ("statfs.tmp", "8388608", Layer::Tmpfs),
            ("statfs.workspace", "10737418240", Layer::Disk),
        ] {
            assert_eq!(missing((key, value)), [layer], "{key} {value}");
        }
    }

    #[test]
    fn a_network_that_was_not_tried_is_told_from_one_that_is_open() {
        let reported = |target: &str, outcome: &str| {
            let facts = [("interfaces", "lo eth0"), ("routes", "2"), (target, outcome)];
            let facts = Facts(facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
            let spec = Spec::standard(SandboxId::from_parts(1, [0; 10]), "x");
            judge(Layer::Network, &spec, &facts, &View { pod: "x".into(), server: Vec::new() })
        };
        let untried = reported("reach.kubernetes", "not an address: KUBERNETES_SERVICE_HOST is not set");
        assert!(!untried.in_force);
        let evidence = "connect to kubernetes: not an address: KUBERNETES_SERVICE_HOST is not set";
        assert!(untried.evidence.ends_with(evidence), "{untried:?}");
        assert!(untried.fix.is_some_and(|fix| fix.contains("KUBERNETES_SERVICE_HOST")));
        let open = reported("reach.10.96.0.1:443", "ok");
        assert!(!open.in_force && open.fix.is_some_and(|fix| fix.contains("NetworkPolicy")));
        assert!(reported("reach.10.96.0.1:443", "timeout").in_force);
    }
}
