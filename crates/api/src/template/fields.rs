//! The fields a template has. A misspelt one is found here, before anything is read, so that what it should have been
//! can be told.

use toml::de::{DeTable, DeValue};

use super::{BadTemplate, document::Document};
use crate::Layer;

pub(super) const FIELDS: [&str; 19] = [
    "name",
    "description",
    "provider",
    "root",
    "profile",
    "layers",
    "user",
    "limits",
    "budget",
    "idle",
    "env",
    "network",
    "secrets",
    "ttl",
    "output_retention",
    "max_file",
    "skills",
    "runtimes",
    "kubernetes",
];
pub(super) const ROOT: [&str; 3] = ["kind", "path", "image"];
pub(super) const LIMITS: [&str; 8] =
    ["memory", "cpus", "processes", "open_files", "tmpfs", "disk", "output", "wall_time"];
pub(super) const BUDGET: [&str; 3] = ["tokens", "usd", "per_minute"];
pub(super) const NETWORK: [&str; 3] = ["allow", "ask", "deny"];
pub(super) const IDLE: [&str; 3] = ["pause_after", "stop_after", "delete_after"];
pub(super) const RUNTIMES: [&str; 2] = ["sandboxd", "legacy"];
pub(super) const SANDBOXD: [&str; 4] = ["grpc_port", "rest_port", "root", "token"];
pub(super) const LEGACY: [&str; 3] = ["port", "root", "timeout"];
pub(super) const KUBERNETES: [&str; 4] = ["runtime_class", "storage", "storage_class", "recover"];
const KINDS: [&str; 3] = ["host", "image", "oci"];

/// Below this two words are not alike.
const ALIKE: f64 = 0.8;

pub(super) fn check(document: &Document<'_>) -> Result<(), BadTemplate> {
    for (key, value) in document.table() {
        let field = key.get_ref().as_ref();
        if !FIELDS.contains(&field) {
            return Err(document.bad(&[field], unknown("field", field, &FIELDS, whole_home(field))));
        }
        match field {
            "root" => root(document, section(document, field, value.get_ref())?)?,
            "layers" => layers(document, section(document, field, value.get_ref())?)?,
            "limits" => known(document, field, section(document, field, value.get_ref())?, &LIMITS)?,
            "budget" => known(document, field, section(document, field, value.get_ref())?, &BUDGET)?,
            "network" => known(document, field, section(document, field, value.get_ref())?, &NETWORK)?,
            "idle" => known(document, field, section(document, field, value.get_ref())?, &IDLE)?,
            "env" => drop(section(document, field, value.get_ref())?),
            "kubernetes" => known(document, field, section(document, field, value.get_ref())?, &KUBERNETES)?,
            "runtimes" => runtimes(document, section(document, field, value.get_ref())?)?,
            _ => {}
        }
    }
    Ok(())
}

fn section<'v, 't>(
    document: &Document<'_>,
    field: &str,
    value: &'v DeValue<'t>,
) -> Result<&'v DeTable<'t>, BadTemplate> {
    value.as_table().ok_or_else(|| document.bad(&[field], format!("`{field}` is a table: write it as [{field}]")))
}

fn known(document: &Document<'_>, section: &str, table: &DeTable<'_>, fields: &[&str]) -> Result<(), BadTemplate> {
    let stranger = table.keys().map(|key| key.get_ref().as_ref()).find(|key| !fields.contains(key));
    let Some(key) = stranger else { return Ok(()) };
    Err(document.bad(&[section, key], unknown(&format!("field of [{section}]"), key, fields, None)))
}

fn runtimes(document: &Document<'_>, table: &DeTable<'_>) -> Result<(), BadTemplate> {
    known(document, "runtimes", table, &RUNTIMES)?;
    for (key, value) in table {
        let runtime = key.get_ref().as_ref();
        let section = format!("runtimes.{runtime}");
        let Some(inner) = value.get_ref().as_table() else {
            let cause = format!("`{section}` is a table: write it as [{section}]");
            return Err(document.bad(&["runtimes", runtime], cause));
        };
        let fields = if runtime == "sandboxd" { &SANDBOXD[..] } else { &LEGACY };
        let stranger = inner.keys().map(|key| key.get_ref().as_ref()).find(|key| !fields.contains(key));
        if let Some(stranger) = stranger {
            let cause = unknown(&format!("field of [{section}]"), stranger, fields, None);
            return Err(document.bad(&["runtimes", runtime, stranger], cause));
        }
    }
    Ok(())
}

fn root(document: &Document<'_>, table: &DeTable<'_>) -> Result<(), BadTemplate> {
    known(document, "root", table, &ROOT)?;
    let bad = |key: &str, cause: String| Err(document.bad(&["root", key], cause));
    let written =
        |wanted: &str| table.iter().find(|(key, _)| key.get_ref() == wanted).map(|(_, value)| value.get_ref());
    let Some(kind) = written("kind") else {
        return bad(
            "kind",
            "[root] says no `kind`: write `kind = \"host\"`, `kind = \"image\"` or `kind = \"oci\"`".into(),
        );
    };
    let stray = |key: &str, of: &str| bad(key, format!("`root.{key}` belongs to `kind = \"{of}\"`; leave it out"));
    match (kind.as_str(), written("path")) {
        (Some("host" | "image"), _) if written("image").is_some() => stray("image", "oci"),
        (Some("host" | "oci"), Some(_)) => stray("path", "image"),
        (Some("host"), None) => Ok(()),
        (Some("oci"), None) => match written("image") {
            Some(image) if image.is_str() => Ok(()),
            Some(_) => bad("image", "`root.image` is not a text".into()),
            None => bad("image", "`kind = \"oci\"` needs `image`, as a registry names it".into()),
        },
        (Some("image"), Some(path)) if path.is_str() => Ok(()),
        (Some("image"), Some(_)) => bad("path", "`root.path` is not a text".into()),
        (Some("image"), None) => bad("path", "`kind = \"image\"` needs `path`, the unpacked image on the host".into()),
        (Some(kind), _) => bad("kind", unknown("root", kind, &KINDS, None)),
        (None, _) => bad("kind", "`root.kind` is not a text: write \"host\", \"image\" or \"oci\"".into()),
    }
}

fn layers(document: &Document<'_>, table: &DeTable<'_>) -> Result<(), BadTemplate> {
    let names: Vec<_> = Layer::ALL.iter().filter(|layer| !layer.is_limit()).map(|layer| layer.as_str()).collect();
    for key in table.keys() {
        let key = key.get_ref().as_ref();
        if LIMITS.contains(&key) {
            let cause =
                format!("`{key}` is a limit, required exactly when it is stated: write it under [limits], or nowhere");
            return Err(document.bad(&["layers", key], cause));
        }
        if !names.contains(&key) {
            return Err(document.bad(&["layers", key], unknown("layer", key, &names, None)));
        }
    }
    Ok(())
}

/// A field of a section that was written without it.
fn whole_home(field: &str) -> Option<String> {
    let within = |fields: &[&str]| fields.contains(&field);
    let section = if within(&LIMITS) {
        "limits"
    } else if within(&IDLE) {
        "idle"
    } else if within(&NETWORK) {
        "network"
    } else if within(&ROOT) {
        "root"
    } else if within(&KUBERNETES) {
        "kubernetes"
    } else if Layer::ALL.iter().any(|layer| layer.as_str() == field) {
        "layers"
    } else {
        return None;
    };
    Some(format!("write it under [{section}]"))
}

/// There is no such thing; says what was probably meant, else what there is.
pub(super) fn unknown(what: &str, text: &str, there_are: &[&str], hint: Option<String>) -> String {
    let text = text.escape_debug().to_string();
    let alike = |known: &&&str| strsim::jaro_winkler(&text.to_lowercase(), known);
    let nearest = there_are.iter().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) >= ALIKE);
    let advice = match (hint, nearest) {
        (Some(hint), _) => hint,
        (None, Some(nearest)) => format!("did you mean `{nearest}`?"),
        (None, None) => format!("there are {}", there_are.join(", ")),
    };
    format!("there is no {what} `{text}`: {advice}")
}
