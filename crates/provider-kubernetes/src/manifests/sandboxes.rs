//! SandboxTemplates and SandboxWarmPools, by the provider's own mapping: the server finds exactly what it would have made.

use sandbar_api::{SandboxId, Template};
use sandbar_provider::{Error, Spec};

use super::{Bad, Given, configured, document::Documents, values::Values};
use crate::objects::Blueprint;

pub(super) fn push(values: &Values, templates: &[Given], documents: &mut Documents) -> Result<(), Bad> {
    let known = |name: &String| templates.iter().any(|given| &given.template.name == name);
    if let Some(name) = values.sandboxes.pools.keys().find(|name| !known(name)) {
        return Err(Bad::NoTemplate(name.clone()));
    }
    if templates.is_empty() {
        return Ok(());
    }
    let settings = configured::settings(values)?;
    for Given { template, .. } in templates {
        let name = &template.name;
        let bad = |source: Error| Bad::Template { template: name.clone(), source: Box::new(source) };
        let blueprint = Blueprint::of(&spec(template), &settings).map_err(bad)?;
        documents.push(&format!("Sandboxes of the template `{name}`."), &blueprint.template)?;
        let size = values.sandboxes.pools.get(name).copied().unwrap_or(0);
        let why = match size {
            0 => format!("None of `{name}` is kept warm; claims need a pool all the same."),
            size => format!("So many of `{name}` are kept warm: {size}."),
        };
        documents.push(&why, &blueprint.pool(size))?;
    }
    Ok(())
}

/// As the engine asks for it; what is a sandbox's own does not reach a pod before it is claimed.
fn spec(template: &Template) -> Spec {
    Spec {
        root: template.root.clone(),
        layers: template.requirements(),
        user: template.user,
        limits: template.limits.clone(),
        skills: template.skills.clone(),
        template: template.name.clone(),
        kubernetes: template.kubernetes.clone(),
        ..Spec::standard(SandboxId::from_parts(0, [0; 10]), template.name.clone())
    }
}
