//! The documents as a cluster reads them.

use std::{fs, path::Path};

use serde_json::Value;

use super::{rights::RIGHTS, *};

const UPDATE: &str = "UPDATE_MANIFESTS";

fn documents(text: &str) -> Vec<Value> {
    text.split("---\n")
        .skip(1)
        .map(|document| serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}\n{document}")))
        .collect()
}

fn rendered(values: &str, templates: &[(&str, &str)]) -> Result<String, Bad> {
    let values = Values::read(values).unwrap_or_else(|bad| panic!("{bad}"));
    let given: Vec<_> = templates
        .iter()
        .map(|(name, text)| {
            let template = sandbar_api::template::parse(name, text).unwrap_or_else(|bad| panic!("{bad}"));
            Given { template, text: (*text).to_owned() }
        })
        .collect();
    render(&values, &given, &[])
}

fn key() -> String {
    let identity = sandbar_provider::identity::Identity::from_seed([9; 32]).unwrap_or_else(|bad| panic!("{bad}"));
    key_shown(&identity.public_key())
}

/// Every pod in the documents, wherever it stands.
fn pods(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) if fields.contains_key("containers") => vec![value],
        Value::Object(fields) => fields.values().flat_map(pods).collect(),
        Value::Array(items) => items.iter().flat_map(pods).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_kustomize_base_is_the_default_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base/sandbar.yaml");
    let text = rendered("", &[]).unwrap_or_else(|bad| panic!("{bad}"));
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(kept.lines()).enumerate().find(|(_, (new, old))| new != old);
    assert!(
        text == kept,
        "deploy/base/sandbar.yaml is not what is printed; {UPDATE}=1 writes it. First difference: {differs:?}"
    );
}

#[test]
fn every_pod_is_restricted_and_every_document_of_a_kind() {
    let values = format!(
        "server_keys = [\"{}\"]\n[store]\nkind = \"postgresql\"\n[sandboxes]\npools = {{ python = 2 }}\n",
        key()
    );
    let templates = [
        ("python", "provider = \"kubernetes\"\nroot = { kind = \"oci\", image = \"python:3\" }\n"),
        ("plain", "provider = \"kubernetes\"\n[kubernetes]\nstorage = \"ephemeral\"\nruntime_class = \"gvisor\"\n"),
    ];
    for text in [rendered("", &[]), rendered(&values, &templates)] {
        let text = text.unwrap_or_else(|bad| panic!("{bad}"));
        let documents = documents(&text);
        let found: Vec<_> = documents.iter().flat_map(pods).collect();
        assert!(!found.is_empty());
        for pod in found {
            assert_eq!(restricted::broken(pod), Vec::<String>::new(), "{pod}");
        }
        for document in &documents {
            for field in ["/apiVersion", "/kind", "/metadata/name"] {
                assert!(document.pointer(field).is_some_and(Value::is_string), "{field}: {document}");
            }
            assert!(document["metadata"]["creationTimestamp"].is_null() && document["status"].is_null(), "{document}");
        }
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
}

#[test]
fn templates_and_pools_are_those_of_the_provider() {
    let values = format!("server_keys = [\"{}\"]\n[sandboxes]\npools = {{ python = 2 }}\n", key());
    let text = rendered(&values, &[("python", "provider = \"kubernetes\"\n")]).unwrap_or_else(|bad| panic!("{bad}"));
    let documents = documents(&text);
    let of =
        |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("{kind}"));
    let (template, pool) = (of("SandboxTemplate"), of("SandboxWarmPool"));
    assert_eq!(template["metadata"]["name"], pool["metadata"]["name"]);
    assert_eq!(pool["spec"]["replicas"], 2);
    assert_eq!(template["spec"]["networkPolicy"]["egress"], serde_json::json!([]));
    let from = &template["spec"]["networkPolicy"]["ingress"][0]["from"][0];
    assert_eq!(from["podSelector"]["matchLabels"]["app.kubernetes.io/component"], "server");
    let files = documents.iter().find(|document| document["metadata"]["name"] == "sandbar-templates");
    assert_eq!(files.map(|map| &map["data"]["python.toml"]), Some(&Value::from("provider = \"kubernetes\"\n")));
}

#[test]
fn configuration_is_beside_what_the_values_say() {
    let files = [File { name: "gateway.toml".into(), text: "[network]\n".into() }];
    let values = Values::default();
    let text = render(&values, &[], &files).unwrap_or_else(|bad| panic!("{bad}"));
    let documents = documents(&text);
    let map = documents.iter().find(|document| document["metadata"]["name"] == "sandbar-config");
    let data = map.map(|map| map["data"].clone()).unwrap_or_default();
    assert_eq!(data["gateway.toml"], "[network]\n");
    assert!(data["kubernetes.toml"].as_str().is_some_and(|text| text.contains("namespace")), "{data}");
    let outside = Values::read("[server]\noutside = true\n").unwrap_or_else(|bad| panic!("{bad}"));
    assert!(matches!(render(&outside, &[], &files), Err(Bad::Elsewhere)));
    let unknown = [File { name: "sandbar.db".into(), text: String::new() }];
    assert!(matches!(render(&values, &[], &unknown), Err(Bad::File(BadFile::Unknown(_)))));
}

/// A leader that hangs is ended, and not the one that would take over from it.
#[test]
fn each_server_is_asked_for_itself_whether_it_lives() {
    for values in ["", "[store]\nkind = \"postgresql\"\n"] {
        let text = rendered(values, &[]).unwrap_or_else(|bad| panic!("{bad}"));
        let documents = documents(&text);
        let found: Vec<_> = documents.iter().flat_map(pods).collect();
        let [pod] = found[..] else { panic!("one pod: {}", found.len()) };
        let container = &pod["containers"][0];
        for probe in ["startupProbe", "livenessProbe"] {
            let asked = &container[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&"/healthz".into(), &"health".into()), "{probe}");
            // Without TLS, which it could only pass on.
            assert_eq!(asked["scheme"], "HTTP", "{probe}");
        }
        assert_eq!(container["readinessProbe"]["httpGet"]["port"], "https");
        let ports = container["ports"].as_array().cloned().unwrap_or_default();
        let port = ports.iter().find(|port| port["name"] == "health").map(|port| port["containerPort"].clone());
        let port = port.unwrap_or_default();
        let words = container["args"].as_array().cloned().unwrap_or_default();
        let at = words.iter().position(|word| word == "--health-listen").unwrap_or_else(|| panic!("{words:?}"));
        assert_eq!(words[at + 1], format!("0.0.0.0:{port}"));
        let policy = documents.iter().find(|it| it["kind"] == "NetworkPolicy" && it["metadata"]["name"] == "server");
        let admitted = policy.map(|policy| policy["spec"]["ingress"][0]["ports"].clone()).unwrap_or_default();
        assert!(admitted.as_array().is_some_and(|ports| ports.iter().any(|it| it["port"] == port)), "{admitted}");
    }
}

#[test]
fn rights_are_the_list_and_no_wildcard() {
    let text = rendered("", &[]).unwrap_or_else(|bad| panic!("{bad}"));
    let documents = documents(&text);
    let granted: Vec<_> = documents.iter().filter_map(|document| document["rules"].as_array()).flatten().collect();
    for right in RIGHTS {
        let found =
            granted.iter().find(|rule| rule["apiGroups"][0] == right.group && rule["resources"][0] == right.resource);
        assert_eq!(found.is_some(), right.scope != rights::Scope::Outside, "{right:?}");
        if let Some(rule) = found {
            assert_eq!(rule["verbs"], serde_json::json!(right.verbs));
        }
        assert!(right.scope == rights::Scope::Outside || text.contains(&format!("  # {}", right.why)), "{right:?}");
    }
    assert!(!granted.iter().any(|rule| rule.to_string().contains('*')), "{granted:?}");
}

#[test]
fn what_was_turned_off_is_not_there() {
    let text = rendered("network_policies = false\n", &[]).unwrap_or_else(|bad| panic!("{bad}"));
    assert!(!documents(&text).iter().any(|document| document["kind"] == "NetworkPolicy"));
}

#[test]
fn a_server_elsewhere_has_an_account_and_a_way_in_and_nothing_else() {
    let text = rendered("[server]\noutside = true\n", &[]).unwrap_or_else(|bad| panic!("{bad}"));
    let documents = documents(&text);
    let kinds: Vec<_> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    assert!(!kinds.contains(&"Deployment") && kinds.contains(&"ServiceAccount"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "NetworkPolicy").count(), 1, "{kinds:?}");
    assert!(text.contains("pods/portforward") && text.contains("create token"), "{text}");
}

#[test]
fn what_cannot_be_is_refused() {
    let template = [("python", "provider = \"kubernetes\"\n")];
    assert!(matches!(rendered("", &template), Err(Bad::NoKey)));
    assert!(matches!(rendered("server_keys = [\"a2V5\"]", &template), Err(Bad::Key(_))));
    let key = key();
    let pools = format!("server_keys = [\"{key}\"]\n[sandboxes]\npools = {{ other = 1 }}\n");
    assert!(matches!(rendered(&pools, &template), Err(Bad::NoTemplate(name)) if name == "other"));
    let keyed = format!("server_keys = [\"{key}\"]\n");
    let root = [("python", "provider = \"kubernetes\"\nuser = \"root\"\n")];
    assert!(matches!(rendered(&keyed, &root), Err(Bad::Template { template, .. }) if template == "python"));
}
