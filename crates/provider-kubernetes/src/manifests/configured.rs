//! `kubernetes.toml` of the server's home: the values that are the provider's. The templates below are made by what it says,
//! so that the server finds them to be its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Bad, server_pods, values::Values};
use crate::Settings;

/// The text of the file.
pub(super) fn text(values: &Values) -> String {
    let sandboxes = &values.sandboxes;
    let pods = server_pods(&values.server.namespace);
    let (reach, server) = match values.server.outside {
        true => ("port_forward", Value::Null),
        false => ("pod_ip", json!({ "namespace": pods.namespace, "labels": pods.labels })),
    };
    let lines: [(&str, Value); 9] = [
        ("namespace", json!(sandboxes.namespace)),
        ("image", json!(sandboxes.image)),
        ("guest_image", json!(sandboxes.guest_image)),
        ("reach", json!(reach)),
        ("image_pull_policy", json!(values.image_pull_policy.map(super::values::PullPolicy::as_str))),
        ("image_pull_secrets", json!(values.image_pull_secrets)),
        ("node_selector", json!(sandboxes.node_selector)),
        ("tolerations", json!(sandboxes.tolerations)),
        ("server", server),
    ];
    lines
        .into_iter()
        .filter(|(_, value)| said(value))
        .map(|(key, value)| format!("{key} = {}\n", toml(&value)))
        .collect()
}

/// As the server will have them.
pub(super) fn settings(values: &Values) -> Result<Settings, Bad> {
    let first = values.server_keys.first().ok_or(Bad::NoKey)?;
    let mut settings = Settings::new(super::key::instance(first)?, values.server_keys.clone());
    settings.configure(&text(values)).map_err(|bad| Bad::Written(bad.to_string()))?;
    Ok(settings)
}

fn said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

/// On one line. What JSON writes for a text is a text of TOML too, but for DEL.
fn toml(value: &Value) -> String {
    let within = |items: Vec<String>| items.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", within(items.iter().map(toml).collect())),
        Value::Object(fields) => format!("{{ {} }}", within(pairs(fields))),
        other => other.to_string().replace('\u{7f}', "\\u007f"),
    }
}

fn pairs(fields: &Map<String, Value>) -> Vec<String> {
    let ordered: BTreeMap<_, _> = fields.iter().filter(|(_, value)| said(value)).collect();
    ordered.into_iter().map(|(key, value)| format!("{} = {}", toml(&json!(key)), toml(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_the_values_say() {
        let values = Values::read(
            "image_pull_policy = \"Never\"\nimage_pull_secrets = [\"a\"]\n[sandboxes]\nimage = \"i\\u0022\\u007f\"\n\
             node_selector = { \"a.b/c\" = \"d\" }\ntolerations = [{ operator = \"Exists\", tolerationSeconds = 5 }]\n",
        )
        .unwrap_or_else(|bad| panic!("{bad}"));
        let mut settings = Settings::new("instance", vec![]);
        settings.configure(&text(&values)).unwrap_or_else(|bad| panic!("{bad}: {}", text(&values)));
        assert_eq!(settings.default_image, "i\"\u{7f}");
        assert_eq!(settings.image_pull_policy.as_deref(), Some("Never"));
        assert_eq!(settings.image_pull_secrets, ["a"]);
        assert_eq!(settings.node_selector, values.sandboxes.node_selector);
        assert_eq!(settings.tolerations, values.sandboxes.tolerations);
        assert_eq!(settings.server, Some(server_pods("sandbar")));
        assert_eq!(settings.namespace, "sandbar-sandboxes");
    }
}
