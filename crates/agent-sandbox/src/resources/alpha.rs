//! What `v1alpha1` says differently, on plain JSON: the types know only `v1beta1`.

use serde_json::{Map, Value, json};

use super::condition::{READY, SANDBOX_SUSPENDED};

const SHADOW: &str = "shadow-pool-";

pub(super) fn unchanged_from(_: &mut Value) {}

/// `spec.replicas` 0 or 1 stands for `operatingMode`.
pub(super) fn sandbox_from(object: &mut Value) {
    let Some(spec) = object["spec"].as_object_mut() else { return };
    let Some(replicas) = spec.remove("replicas") else { return };
    let suspended = replicas == 0;
    spec.insert("operatingMode".into(), if suspended { "Suspended" } else { "Running" }.into());
    // Old controllers call it ready once it has no pod, as was asked.
    if suspended && object["status"]["replicas"].as_i64().unwrap_or(0) == 0 {
        let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        for ready in conditions.into_iter().flatten().filter(|one| one["type"] == READY && one["status"] == "True") {
            ready["status"] = "False".into();
            ready["reason"] = SANDBOX_SUSPENDED.into();
        }
    }
}

pub(super) fn sandbox_to(object: &mut Value, _: Option<&str>) -> Result<(), &'static str> {
    if let Some(spec) = object["spec"].as_object_mut()
        && let Some(mode) = spec.remove("operatingMode")
    {
        spec.insert("replicas".into(), if mode == "Suspended" { 0 } else { 1 }.into());
    }
    Ok(())
}

/// The pool is the named one, else that of the member it got, else a shadow of its template.
pub(super) fn claim_from(object: &mut Value) {
    let claim = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let status = &object["status"]["sandbox"];
    let member = status["name"].as_str().or(status["Name"].as_str()).unwrap_or_default().to_owned();
    let Some(spec) = object["spec"].as_object_mut() else { return };
    let template = name_of(spec, "sandboxTemplateRef");
    let pool = match spec.remove("warmpool") {
        Some(Value::String(pool)) if pool != "none" && pool != "default" => pool,
        _ if !member.is_empty() && member != claim => match member.rsplit_once('-') {
            Some((pool, _)) => pool.to_owned(),
            None => member,
        },
        _ => format!("{SHADOW}{template}"),
    };
    spec.remove("sandboxTemplateRef");
    spec.insert("warmPoolRef".into(), json!({ "name": pool }));
}

pub(super) fn claim_to(object: &mut Value, template: Option<&str>) -> Result<(), &'static str> {
    let Some(spec) = object["spec"].as_object_mut() else { return Ok(()) };
    if spec.contains_key("volumeClaimTemplates") {
        return Err("volumeClaimTemplates of a claim");
    }
    let pool = name_of(spec, "warmPoolRef");
    spec.remove("warmPoolRef");
    let (template, pool) = match (pool.strip_prefix(SHADOW), template) {
        // Any pool of the template is what nobody says, and the first releases cannot say otherwise.
        (Some(shadowed), _) => (shadowed.to_owned(), None),
        (None, Some(template)) => (template.to_owned(), Some(pool)),
        (None, None) => (pool.clone(), Some(pool)),
    };
    spec.insert("sandboxTemplateRef".into(), json!({ "name": template }));
    if let Some(pool) = pool {
        spec.insert("warmpool".into(), pool.into());
    }
    Ok(())
}

pub(super) fn template_to(object: &mut Value, _: Option<&str>) -> Result<(), &'static str> {
    match object["spec"].as_object_mut().and_then(|spec| spec.remove("volumeClaimTemplatesPolicy")) {
        // The old version forbids them without being told.
        None => Ok(()),
        Some(policy) if policy == "Disallowed" => Ok(()),
        Some(_) => Err("volumeClaimTemplatesPolicy"),
    }
}

pub(super) fn pool_to(object: &mut Value, _: Option<&str>) -> Result<(), &'static str> {
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.entry("replicas").or_insert(1.into());
    }
    Ok(())
}

/// The template of a claim to `pool`, when the pool's name says it.
pub(crate) fn shadowed(pool: &str) -> Option<&str> {
    pool.strip_prefix(SHADOW)
}

fn name_of(spec: &Map<String, Value>, reference: &str) -> String {
    spec.get(reference).and_then(|reference| reference["name"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{OperatingMode, Sandbox, SandboxClaim, SandboxTemplate, Served, Version};
    use super::*;

    const SANDBOXES: &str = "agents.x-k8s.io/v1alpha1";
    const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1alpha1";

    fn claim(name: &str, spec: Value, status: Value) -> SandboxClaim {
        let object = json!({"apiVersion": EXTENSIONS, "kind": "SandboxClaim", "metadata": {"name": name}, "spec": spec, "status": status});
        serde_json::from_value::<Served<SandboxClaim>>(object).expect("a claim").object
    }

    #[test]
    fn replicas_are_the_operating_mode() {
        for (replicas, mode) in [(0, OperatingMode::Suspended), (1, OperatingMode::Running)] {
            let object = json!({"apiVersion": SANDBOXES, "kind": "Sandbox", "metadata": {"name": "s"},
                "spec": {"replicas": replicas, "podTemplate": {"spec": {"containers": []}}}});
            let read: Served<Sandbox> = serde_json::from_value(object).expect("a sandbox");
            assert_eq!(read.object.spec.operating_mode, Some(mode));
            let written = serde_json::to_value(&read).expect("JSON");
            assert_eq!(written["apiVersion"], SANDBOXES);
            assert_eq!(written["spec"]["replicas"], replicas);
            assert!(written["spec"].get("operatingMode").is_none());
        }
    }

    #[test]
    fn without_a_pod_nothing_is_ready() {
        for (replicas, pods, ready) in [(0, 0, "False"), (0, 1, "True"), (1, 1, "True")] {
            let object = json!({"apiVersion": SANDBOXES, "kind": "Sandbox", "metadata": {"name": "s"},
                "spec": {"replicas": replicas, "podTemplate": {"spec": {"containers": []}}},
                "status": {"replicas": pods, "conditions": [{"type": "Ready", "status": "True", "reason": "R",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            let read: Served<Sandbox> = serde_json::from_value(object).expect("a sandbox");
            let status = read.object.status.expect("a status");
            assert_eq!(status.conditions[0].status, ready, "{replicas} wanted, {pods} there");
        }
    }

    #[test]
    fn a_claims_pool_is_found() {
        let template = json!({"name": "t"});
        let named = claim("c", json!({"sandboxTemplateRef": template, "warmpool": "p"}), json!({}));
        assert_eq!(named.spec.warm_pool_ref.name, "p");
        let bound = claim("c", json!({"sandboxTemplateRef": template}), json!({"sandbox": {"Name": "my-pool-x7k2p"}}));
        assert_eq!(bound.spec.warm_pool_ref.name, "my-pool");
        for status in [json!({}), json!({"sandbox": {"name": "c"}})] {
            let cold = claim("c", json!({"sandboxTemplateRef": template, "warmpool": "none"}), status);
            assert_eq!(cold.spec.warm_pool_ref.name, "shadow-pool-t");
        }
    }

    #[test]
    fn a_claim_is_written_with_its_template() {
        let mut object = SandboxClaim::new("c", Default::default());
        object.spec.warm_pool_ref.name = "p".into();
        let served = Served { object: object.clone(), version: Version::V1Alpha1, template: Some("t".into()) };
        let written = serde_json::to_value(&served).expect("JSON");
        assert_eq!(written["spec"], json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": "p"}));
        object.spec.warm_pool_ref.name = "shadow-pool-t".into();
        let served = Served { object: object.clone(), version: Version::V1Alpha1, template: None };
        let written = serde_json::to_value(&served).expect("JSON");
        assert_eq!(written["spec"], json!({"sandboxTemplateRef": {"name": "t"}}));
        object.spec.volume_claim_templates = vec![Default::default()];
        let served = Served { object, version: Version::V1Alpha1, template: None };
        assert!(serde_json::to_value(&served).is_err(), "the old version has no volumes of claims");
    }

    #[test]
    fn a_policy_the_old_version_cannot_say_is_refused() {
        let mut value = json!({"spec": {"podTemplate": {}, "volumeClaimTemplatesPolicy": "Disallowed"}});
        assert_eq!(template_to(&mut value, None), Ok(()));
        assert!(value["spec"].get("volumeClaimTemplatesPolicy").is_none());
        value["spec"]["volumeClaimTemplatesPolicy"] = "Allowed".into();
        assert!(template_to(&mut value, None).is_err());
    }

    #[test]
    fn what_is_newer_than_this_crate_is_tolerated() {
        let object = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
            "metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": {"containers": []}, "new": 1},
            "networkPolicyManagement": "Shared", "more": {"of": "it"}}});
        let read: Served<SandboxTemplate> = serde_json::from_value(object).expect("a template");
        let management = read.object.spec.network_policy_management.clone();
        assert_eq!(management, Some(super::super::NetworkPolicyManagement::Other("Shared".into())));
        assert_eq!(serde_json::to_value(&read).expect("JSON")["spec"]["networkPolicyManagement"], "Shared");
    }
}
