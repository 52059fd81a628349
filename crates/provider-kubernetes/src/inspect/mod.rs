//! The enforcement report of a pod: what a process inside it found, next to what was asked.

mod facts;
mod judge;

use sandbar_api::{Layer, LayerReport, Requirement};
use sandbar_guest::protocol::ProbeRequest;
use sandbar_provider::{Error, Guest, Spec};

pub(crate) use facts::Facts;
use judge::{View, judge};

use crate::{failure, kubernetes::Kubernetes, life::Place};

/// A namespace of ours, where the server itself runs on a node.
const NAMESPACES: [&str; 5] = ["mnt", "pid", "net", "ipc", "uts"];
/// What an application kernel calls itself; the older one pretends to be a kernel that no node runs any more.
const GVISOR: [&str; 2] = ["gvisor", "Linux version 4.4.0"];

/// A report for each layer.
pub(crate) async fn inspect(
    cluster: &Kubernetes,
    spec: &Spec,
    place: &Place,
    guest: &Guest,
) -> Result<Vec<LayerReport>, Error> {
    let facts = look(spec, guest, cluster.shared.targets.clone()).await?;
    Ok(report(Layer::ALL, spec, &facts, place))
}

/// Fail closed: refuses a sandbox in which a layer that it requires is not in force.
///
/// Everything but the network is looked at in this very sandbox, which takes some milliseconds. Whether its network leads
/// anywhere takes as long as one is willing to wait for no answer, so that is tried once for each template on each node:
/// what decides it, the policy and whoever enforces it there, is the same for all of them.
pub(crate) async fn demand(
    cluster: &Kubernetes,
    spec: &Spec,
    blueprint: &str,
    place: &Place,
    guest: &Guest,
) -> Result<(), Error> {
    let facts = look(spec, guest, Vec::new()).await?;
    runtime_class(spec, &facts)?;
    let but_network: Vec<_> = Layer::ALL.iter().copied().filter(|layer| *layer != Layer::Network).collect();
    refuse(report(&but_network, spec, &facts, place))?;
    let node = (blueprint.to_owned(), facts.get("boot").to_owned());
    let nameless = node.1 == "not seen" || node.1.starts_with("error");
    if spec.requirement(Layer::Network) != Requirement::Required || (!nameless && cluster.shared.is_closed(&node)) {
        return Ok(());
    }
    let facts = look(spec, guest, cluster.shared.targets.clone()).await?;
    refuse(report(&[Layer::Network], spec, &facts, place))?;
    cluster.shared.closed(node);
    Ok(())
}

async fn look(spec: &Spec, guest: &Guest, reach: Vec<String>) -> Result<Facts, Error> {
    let failed =
        |status: tonic::Status| failure::not_running(&spec.id, format!("its probe failed: {}", status.message()));
    let reply = guest.clone().probe(ProbeRequest { reach }).await.map_err(failed)?;
    Ok(Facts(reply.into_inner().facts))
}

fn report(layers: &[Layer], spec: &Spec, facts: &Facts, place: &Place) -> Vec<LayerReport> {
    let own = |name: &'static str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        Some((name, link.display().to_string()))
    };
    let view = View { pod: place.sandbox.clone(), server: NAMESPACES.into_iter().filter_map(own).collect() };
    layers.iter().map(|layer| judge(*layer, spec, facts, &view)).collect()
}

fn refuse(reports: Vec<LayerReport>) -> Result<(), Error> {
    match reports.into_iter().find(|one| one.requirement == Requirement::Required && !one.in_force) {
        Some(LayerReport { layer, evidence, fix, .. }) => Err(failure::not_in_force(layer, evidence, fix)),
        None => Ok(()),
    }
}

/// An API server takes any RuntimeClass that exists; what runs the pod is seen inside.
fn runtime_class(spec: &Spec, facts: &Facts) -> Result<(), Error> {
    let Some(class) = &spec.kubernetes.runtime_class else { return Ok(()) };
    let wanted = ["gvisor", "runsc"].iter().any(|name| class.to_lowercase().contains(name));
    let kernel = facts.get("kernel");
    if !wanted || GVISOR.iter().any(|mark| kernel.contains(mark)) {
        return Ok(());
    }
    Err(Error::NotEnforceable {
        layer: "runtime class",
        cause: format!("the RuntimeClass `{class}` is not in force: the kernel inside is {kernel}"),
        fix: "Check the handler of the RuntimeClass and the node's runtime configuration for it.".into(),
    })
}

#[cfg(test)]
mod tests {
    use sandbar_api::SandboxId;

    use super::*;

    #[test]
    fn a_runtime_class_is_believed_when_its_kernel_is_seen() {
        let mut spec = Spec::standard(SandboxId::from_parts(1, [0; 10]), "x");
        let kernel = |text: &str| Facts([("kernel".to_owned(), text.to_owned())].into());
        let node = kernel("Linux version 6.12.0 (gcc)");
        assert!(runtime_class(&spec, &node).is_ok());
        spec.kubernetes.runtime_class = Some("gvisor".into());
        assert!(matches!(runtime_class(&spec, &node), Err(Error::NotEnforceable { .. })));
        assert!(runtime_class(&spec, &kernel("Linux version 4.19.0-gvisor #1 SMP")).is_ok());
        assert!(runtime_class(&spec, &kernel("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016")).is_ok());
    }
}
