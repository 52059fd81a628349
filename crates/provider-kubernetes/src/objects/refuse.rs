//! What a pod cannot be, said before anything is made.

use sandbar_api::{Layer, Requirement, Root, Storage, User, WorkspaceSource};
use sandbar_provider::{Error, Spec};

use crate::Settings;

/// The image that the sandbox runs, if a pod can be what is asked for.
pub(crate) fn image<'a>(spec: &'a Spec, settings: &'a Settings) -> Result<&'a str, Error> {
    if let WorkspaceSource::Bind { path } = &spec.workspace {
        return Err(bad(
            format!("the workspace {path}"),
            "a pod has no directory of the server's host",
            "Create it without a bound workspace and copy the files in with `sandbar cp`.",
        ));
    }
    if spec.skills.is_some() {
        return Err(bad(
            "`skills`".into(),
            "a pod has no directory of the server's host",
            "Put the skills into the template's image, or copy them in with `sandbar cp`.",
        ));
    }
    if spec.from.is_some() {
        return Err(bad(
            "a snapshot".into(),
            "sandboxes on a cluster are made from images alone",
            "Create it from a template, or use a template of the provider `local`.",
        ));
    }
    if spec.user == User::Root {
        return Err(template(
            "`user = \"root\"`".into(),
            "pods run without root, as the restricted Pod Security standard demands",
            "Use `user = \"agent\"`, and put what needs root into the template's image.",
        ));
    }
    if spec.requirement(Layer::NoExec) == Requirement::Required {
        return Err(Error::NotEnforceable {
            layer: Layer::NoExec.title(),
            cause: "a pod's volumes for /tmp and the home directory are executable".into(),
            fix: "Say `no_exec = \"off\"` under [layers] of the template, which `hardened` asks for.".into(),
        });
    }
    limits(spec)?;
    match &spec.root {
        Root::Host => Ok(&settings.default_image),
        Root::Oci { image } if image.is_empty() || image.contains(char::is_whitespace) => Err(template(
            format!("the image {image:?}"),
            "that is no name of an image",
            "Name it as a registry does, for example `registry.example/team/image:tag`.",
        )),
        Root::Oci { image } => Ok(image),
        Root::Image { path } => Err(bad(
            format!("the image directory {path}"),
            "a pod's image comes from a registry, not from the server's disk",
            "Use `root = { kind = \"oci\", image = \"…\" }`.",
        )),
    }
}

fn limits(spec: &Spec) -> Result<(), Error> {
    let refused = |layer: Layer, cause: &str, fix: &str| {
        Err(Error::NotEnforceable { layer: layer.title(), cause: cause.into(), fix: fix.into() })
    };
    if spec.limits.processes.is_some() {
        return refused(
            Layer::Processes,
            "a pod has no limit of its own; the node's kubelet has one for all its pods (podPidsLimit)",
            "Leave `limits.processes` out of templates for a cluster, and set podPidsLimit on its nodes.",
        );
    }
    if spec.limits.disk.is_some() && spec.kubernetes.storage == Storage::Ephemeral {
        return refused(
            Layer::Disk,
            "what a pod writes to its node is measured now and then, not bounded",
            "Use `storage = \"persistent\"`, whose volume has a size, or leave `limits.disk` out.",
        );
    }
    match spec.limits.cpus {
        Some(cpu) if !cpu.is_finite() || cpu <= 0.0 => {
            Err(template(format!("`limits.cpus = {cpu}`"), "that is no amount of processors", "Use for example 1.5."))
        }
        _ => Ok(()),
    }
}

fn template(what: String, cause: &str, fix: &str) -> Error {
    Error::BadTemplate { what, cause: cause.into(), fix: fix.into() }
}

/// Of the sandbox, whatever its template.
fn bad(what: String, cause: &str, fix: &str) -> Error {
    Error::BadSpec { what, cause: cause.into(), fix: fix.into() }
}
