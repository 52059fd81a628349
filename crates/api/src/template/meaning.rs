//! What a template must mean to be usable, beyond being well-formed: each rule with its reason and its fix.

use std::collections::BTreeMap;

use super::{BadTemplate, Root, Runtimes, Storage, Template, User, document::Document, fields};
use sandbar_policy::Rule;

use crate::{HumanDuration, Idle, Layer, Profile, Requirement, check, network::GATE_PORT, secret};

const MOST_REFERENCE: usize = 512;
const MOST_SUBDOMAIN: usize = 253;

pub(super) fn check(document: &Document<'_>, template: &Template) -> Result<(), BadTemplate> {
    if check::name(&template.provider).is_err() {
        return Err(document.bad(&["provider"], "`provider` is no provider's name: write for example \"local\""));
    }
    profile(document, &template.profile)?;
    layers(document, template)?;
    template.limits.check().map_err(|bad| document.bad(&["limits", bad.field], bad.to_string()))?;
    let said = |problem: crate::Problem| problem.detail.trim_end_matches('.').to_owned();
    template.budget.check().map_err(|problem| document.bad(&["budget"], said(problem)))?;
    idle(document, &template.idle)?;
    env(document, &template.env)?;
    network(document, template)?;
    if template.ttl.is_some_and(|ttl| ttl.0.is_zero()) {
        return Err(document.bad(&["ttl"], "`ttl` is zero: leave it out for none"));
    }
    runtimes(document, &template.runtimes)?;
    kubernetes(document, template)?;
    if let Some(path) = &template.skills {
        skills(document, path)?;
    }
    match &template.root {
        Root::Image { path } if !path.starts_with('/') || path.contains('\0') => {
            Err(document.bad(&["root", "path"], "`root.path` is not absolute: give the image's full path on the host"))
        }
        Root::Oci { image } if !is_reference(image) => {
            let cause = "`root.image` is no image's name: write it as a registry does, \"python:3.12\"";
            Err(document.bad(&["root", "image"], cause))
        }
        Root::Image { .. } | Root::Oci { .. } | Root::Host => Ok(()),
    }
}

/// Whether a registry could name an image so; whether there is one shows when it is fetched.
fn is_reference(image: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@[]".contains(&byte);
    (1..=MOST_REFERENCE).contains(&image.len())
        && image.bytes().all(plain)
        && image.as_bytes()[0].is_ascii_alphanumeric()
}

fn kubernetes(document: &Document<'_>, template: &Template) -> Result<(), BadTemplate> {
    let asked = &template.kubernetes;
    if template.provider != "kubernetes" {
        if asked.is_default() {
            return Ok(());
        }
        let cause = format!("[kubernetes] says nothing to the provider `{}`: leave it out", template.provider);
        return Err(document.bad(&["kubernetes"], cause));
    }
    for (field, name) in [("runtime_class", &asked.runtime_class), ("storage_class", &asked.storage_class)] {
        if name.as_ref().is_some_and(|name| !is_subdomain(name)) {
            let cause =
                format!("`kubernetes.{field}` is no object's name: write lower-case letters, digits, `-` and `.`");
            return Err(document.bad(&["kubernetes", field], cause));
        }
    }
    if template.idle.pause_after.is_some() {
        let cause = "`idle.pause_after` cannot be had on a cluster, which does not pause pods: use `stop_after`";
        return Err(document.bad(&["idle", "pause_after"], cause));
    }
    if asked.storage == Storage::Ephemeral {
        let gone = "goes with the pod where `kubernetes.storage` is \"ephemeral\"";
        if template.idle.stop_after.is_some() {
            let cause = format!("`idle.stop_after` would lose the files: what is in it {gone}");
            return Err(document.bad(&["idle", "stop_after"], cause));
        }
        if asked.recover {
            let cause = "`kubernetes.recover` has nothing to start over: the files would be lost, since `storage` is \"ephemeral\"";
            return Err(document.bad(&["kubernetes", "recover"], cause));
        }
        if asked.storage_class.is_some() {
            let cause = "`kubernetes.storage_class` belongs to `storage = \"persistent\"`; leave one of the two out";
            return Err(document.bad(&["kubernetes", "storage_class"], cause));
        }
    }
    Ok(())
}

/// RFC 1123, as Kubernetes names most objects.
fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= MOST_SUBDOMAIN && name.split('.').all(label)
}

fn profile(document: &Document<'_>, name: &str) -> Result<(), BadTemplate> {
    let names: Vec<_> = Profile::names().collect();
    if names.contains(&name) {
        return Ok(());
    }
    let hint = format!("there are {}", names.join(", "));
    Err(document.bad(&["profile"], fields::unknown("profile", name, &names, Some(hint))))
}

fn layers(document: &Document<'_>, template: &Template) -> Result<(), BadTemplate> {
    for (layer, asked) in &template.layers {
        let name = layer.as_str();
        if layer.is_essential() && *asked != Requirement::Required {
            let cause = format!(
                "`{name}` cannot be {}: without it there is no sandbox; leave it out, it is always required",
                asked.as_str()
            );
            return Err(document.bad(&["layers", name], cause));
        }
        if *layer == Layer::Capabilities && template.user == User::Root && *asked != Requirement::Off {
            let cause = "`user = \"root\"` has the few capabilities that package managers need, so `capabilities` \
                         cannot be asked for as well; leave one of the two out";
            return Err(document.bad(&["layers", name], cause));
        }
    }
    Ok(())
}

fn idle(document: &Document<'_>, idle: &Idle) -> Result<(), BadTemplate> {
    let steps =
        [("pause_after", idle.pause_after), ("stop_after", idle.stop_after), ("delete_after", idle.delete_after)];
    let mut before: Option<(&str, HumanDuration)> = None;
    for (field, after) in steps {
        let Some(after) = after else { continue };
        if after.0.is_zero() {
            let cause = format!("`idle.{field}` is zero: state a longer time, or leave it out for never");
            return Err(document.bad(&["idle", field], cause));
        }
        if let Some((earlier, time)) = before
            && after <= time
        {
            let cause = format!(
                "`idle.{field}` ({after}) is not after `idle.{earlier}` ({time}), so that one would never happen; \
                 make it longer, or leave one out"
            );
            return Err(document.bad(&["idle", field], cause));
        }
        before = Some((field, after));
    }
    Ok(())
}

fn network(document: &Document<'_>, template: &Template) -> Result<(), BadTemplate> {
    let lists = [("allow", &template.network.allow), ("ask", &template.network.ask), ("deny", &template.network.deny)];
    for (field, list) in lists {
        for text in list {
            Rule::parse(text).map_err(|bad| document.bad(&["network", field], bad.to_string()))?;
        }
    }
    let said = |problem: crate::Problem| problem.detail.trim_end_matches('.').to_owned();
    template.network.check().map_err(|problem| document.bad(&["network"], said(problem)))?;
    for name in &template.secrets {
        secret::check_name(name).map_err(|problem| document.bad(&["secrets"], said(problem)))?;
    }
    Ok(())
}

fn skills(document: &Document<'_>, path: &str) -> Result<(), BadTemplate> {
    let cause = if !path.starts_with('/') || path.contains('\0') {
        "is not absolute"
    } else if path.split('/').any(|part| part == "..") {
        "has a `..` in it"
    } else if path.split('/').all(|part| part.is_empty() || part == ".") {
        "is the whole host"
    } else {
        return Ok(());
    };
    let fix = "give the full path of a directory on the server's host";
    Err(document.bad(&["skills"], format!("`skills` {cause}: {fix}")))
}

/// Below this a token is guessed; above is what no header holds.
const TOKEN: (usize, usize) = (16, 1024);

fn runtimes(document: &Document<'_>, runtimes: &Runtimes) -> Result<(), BadTemplate> {
    let bad = |runtime: &str, field: &str, cause: &str| {
        Err(document.bad(&["runtimes", runtime, field], format!("`runtimes.{runtime}.{field}` {cause}")))
    };
    let sandboxd = runtimes.sandboxd.as_ref();
    let legacy = runtimes.legacy.as_ref();
    let ports = sandboxd
        .into_iter()
        .flat_map(|asked| [("sandboxd", "grpc_port", asked.grpc_port), ("sandboxd", "rest_port", asked.rest_port)])
        .chain(legacy.map(|asked| ("legacy", "port", asked.port)));
    let mut taken = BTreeMap::from([(0, "is no port: state 1 to 65535".to_owned())]);
    taken.insert(GATE_PORT, format!("is {GATE_PORT}, the sandbox's own way out: choose another"));
    for (runtime, field, port) in ports {
        if let Some(cause) = taken.get(&port) {
            return bad(runtime, field, cause);
        }
        taken.insert(port, format!("is {port}, as `runtimes.{runtime}.{field}`: each needs a port of its own"));
    }
    let roots = sandboxd.map(|asked| ("sandboxd", &asked.root)).into_iter();
    for (runtime, root) in roots.chain(legacy.map(|asked| ("legacy", &asked.root))) {
        if !root.starts_with('/') || root.contains('\0') || root.split('/').any(|part| part == "..") {
            return bad(runtime, "root", "is not an absolute path without `..`: give one inside, as \"/workspace\"");
        }
    }
    if let Some(token) = sandboxd.and_then(|asked| asked.token.as_ref())
        && !((TOKEN.0..=TOKEN.1).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let cause = format!("is no token: give {} to {} printable characters without blanks", TOKEN.0, TOKEN.1);
        return bad("sandboxd", "token", &cause);
    }
    if legacy.is_some_and(|asked| asked.timeout.0.as_millis() == 0) {
        return bad("legacy", "timeout", "is zero: state a longer time");
    }
    Ok(())
}

fn env(document: &Document<'_>, env: &BTreeMap<String, String>) -> Result<(), BadTemplate> {
    let cause = |problem: crate::Problem| {
        format!("{}: {}", problem.detail.trim_end_matches('.'), problem.fix.trim_end_matches('.'))
    };
    for (key, value) in env {
        let one = BTreeMap::from([(key.clone(), value.clone())]);
        check::env(&one).map_err(|problem| document.bad(&["env", key], cause(problem)))?;
    }
    check::env(env).map_err(|problem| document.bad(&["env"], cause(problem)))
}
