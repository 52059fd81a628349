//! What this host can enforce, found by making a sandbox and asking inside it. A configuration is not evidence.

use sandbar_api::{Layer, LayerReport, Requirement, SandboxId};
use sandbar_provider::{Error, Finding, HostReport, Provider, Spec};

use crate::{cgroup::Controller, disk, local::Local};

pub(crate) async fn probe(local: &Local) -> HostReport {
    let mut findings = vec![kernel()];
    match trial(local).await {
        Ok(layers) => findings.extend(layers.into_iter().filter(|report| !report.layer.is_limit()).map(found)),
        Err(Error::NotEnforceable { layer, cause, fix }) => {
            findings.push(finding(layer, false, true, cause, &fix));
        }
        Err(error) => {
            findings.push(finding("sandbox", false, true, with_cause(&error), "The evidence above names what failed."));
        }
    }
    findings.extend(bounds(local));
    HostReport { provider: local.name().into(), findings }
}

fn finding(layer: &str, works: bool, required: bool, evidence: String, fix: &str) -> Finding {
    Finding { layer: layer.into(), works, required, evidence, fix: (!works).then(|| fix.to_owned()) }
}

fn found(report: LayerReport) -> Finding {
    let required = report.requirement == Requirement::Required;
    finding(report.layer.title(), report.in_force, required, report.evidence, fix(report.layer))
}

pub(crate) fn fix(layer: Layer) -> &'static str {
    match layer {
        Layer::Users => "Run `sandbar up` as root to give each sandbox uids of its own.",
        Layer::Landlock => "Use kernel 6.2 or newer with landlock in the `lsm=` list.",
        Layer::Seccomp => "Use a kernel with CONFIG_SECCOMP_FILTER.",
        Layer::NetNamespace | Layer::Network => "Use a kernel with CONFIG_NET_NS.",
        limit if limit.is_limit() => "`sandbar doctor` shows what this host lacks for it.",
        _ => "Use kernel 6.2 or newer, outside of a container that forbids it.",
    }
}

/// What templates may ask for besides: nothing of it is required unless one does.
fn bounds(local: &Local) -> Vec<Finding> {
    const GROUPS: &str =
        "Run `sandbar up` as root, or in a delegated cgroup (systemd-run --user --scope -p Delegate=yes).";
    let groups = &local.shared.groups;
    let limits =
        [(Layer::Memory, Controller::Memory), (Layer::Cpu, Controller::Cpu), (Layer::Processes, Controller::Processes)];
    let limits = limits.map(|(layer, controller)| match groups.can_limit(controller) {
        Ok(place) => {
            finding(layer.title(), true, false, format!("{place} has the {} controller", controller.as_str()), "")
        }
        Err(cause) => finding(layer.title(), false, false, cause, GROUPS),
    });
    let disk = match local.shared.register.has_ranges() {
        true => disk::can_make(),
        false => Err(disk::refused("an ordinary user cannot mount a disk image".into(), "Run `sandbar up` as root.")),
    };
    let disk = match disk {
        Ok(()) => finding(Layer::Disk.title(), true, false, "mke2fs and loop devices are there".into(), ""),
        Err(Error::NotEnforceable { cause, fix, .. }) => finding(Layer::Disk.title(), false, false, cause, &fix),
        Err(error) => finding(Layer::Disk.title(), false, false, with_cause(&error), "See the evidence."),
    };
    let freezing = match groups.can_freeze() {
        Ok(()) => finding("freezing", true, false, "cgroup v2 takes groups of ours: pause, snapshot, fork".into(), ""),
        Err(cause) => finding("freezing", false, false, cause.to_owned(), GROUPS),
    };
    limits.into_iter().chain([disk, freezing]).collect()
}

fn with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    finding("kernel", true, true, format!("Linux {release}"), "")
}

/// Makes a sandbox in which everything is asked for, inspects it, removes it.
async fn trial(local: &Local) -> Result<Vec<LayerReport>, Error> {
    let mut random = [0; 10];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::io("get randomness")(errno.into()))?;
    let mut spec = Spec::standard(SandboxId::from_parts(0, random), "probe");
    for layer in [Layer::ReadOnlyRoot, Layer::NoExec] {
        spec.layers.insert(layer, Requirement::Optional);
    }
    local.create(&spec).await?;
    let layers = local.inspect(&spec).await;
    local.destroy(&spec.id).await?;
    layers
}
