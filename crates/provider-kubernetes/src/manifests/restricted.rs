//! The restricted Pod Security standard, rule by rule, over a pod as it is written. Reads the document and not our types, so
//! that what it judges is what a cluster gets.

use serde_json::Value;

/// Volumes that a restricted pod may have.
const VOLUMES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

/// Every rule that the pod breaks.
pub(super) fn broken(pod: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[field] == true {
            broken.push(field.to_owned());
        }
    }
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
        broken.extend(
            kinds.filter(|(kind, _)| !VOLUMES.contains(&kind.as_str())).map(|(kind, _)| format!("volume {kind}")),
        );
    }
    let context = &pod["securityContext"];
    if !context["sysctls"].is_null() {
        broken.push("sysctls".into());
    }
    let containers =
        ["initContainers", "containers"].iter().flat_map(|list| pod[*list].as_array().into_iter().flatten());
    for container in containers {
        let own = &container["securityContext"];
        let name = &container["name"];
        let mut rule = |holds: bool, what: &str| {
            if !holds {
                broken.push(format!("{name}: {what}"));
            }
        };
        let inherited = |field: &str| if own[field].is_null() { &context[field] } else { &own[field] };
        rule(own["privileged"] != true, "privileged");
        rule(own["allowPrivilegeEscalation"] == false, "allowPrivilegeEscalation");
        rule(*inherited("runAsNonRoot") == true, "runAsNonRoot");
        rule(*inherited("runAsUser") != 0, "runAsUser");
        let profile = &inherited("seccompProfile")["type"];
        rule(profile == "RuntimeDefault" || profile == "Localhost", "seccompProfile");
        let drops = own["capabilities"]["drop"].as_array();
        rule(drops.is_some_and(|drops| drops.iter().any(|drop| drop == "ALL")), "capabilities.drop");
        let adds = own["capabilities"]["add"].as_array();
        rule(adds.is_none_or(|adds| adds.iter().all(|add| add == "NET_BIND_SERVICE")), "capabilities.add");
        let ports = container["ports"].as_array().into_iter().flatten();
        rule(ports.into_iter().all(|port| port["hostPort"].is_null() || port["hostPort"] == 0), "hostPort");
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_restricted_is_named() {
        let good = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "a", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        });
        assert_eq!(broken(&good), Vec::<String>::new());
        for (at, value, says) in [
            ("/containers/0/securityContext/allowPrivilegeEscalation", json!(true), "allowPrivilegeEscalation"),
            ("/containers/0/securityContext/capabilities/drop", json!(["NET_RAW"]), "capabilities.drop"),
            ("/securityContext/runAsNonRoot", json!(false), "runAsNonRoot"),
            ("/securityContext/seccompProfile", json!(null), "seccompProfile"),
            ("/volumes/0", json!({ "name": "v", "hostPath": { "path": "/" } }), "hostPath"),
        ] {
            let mut bad = good.clone();
            if let Some(place) = bad.pointer_mut(at) {
                *place = value;
            }
            let told = broken(&bad);
            assert!(told.len() == 1 && told[0].contains(says), "{at}: {told:?}");
        }
    }
}
