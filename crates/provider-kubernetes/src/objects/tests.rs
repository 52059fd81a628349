use sandbar_api::{HumanSize, InstanceId, Limits, Root, User, WorkspaceSource};
use sandbar_provider::Mark;
use serde_json::{Value, json};

use super::*;

fn settings() -> Settings {
    Settings::new("0123456789abcdef", vec!["KEY".into()])
}

fn spec() -> Spec {
    Spec::standard(SandboxId::from_parts(1, [7; 10]), "box")
}

fn blueprint(spec: &Spec, settings: &Settings) -> Blueprint {
    Blueprint::of(spec, settings).unwrap_or_else(|error| panic!("{error:?}"))
}

fn json_of(blueprint: &Blueprint) -> Value {
    serde_json::to_value(&blueprint.template.spec).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_pod_is_what_the_restricted_standard_demands() {
    let content = json_of(&blueprint(&spec(), &settings()));
    let pod = &content["podTemplate"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 1000);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["restartPolicy"], "Never");
    for key in ["hostNetwork", "hostPID", "hostIPC", "hostUsers", "serviceAccountName", "runtimeClassName"] {
        assert_eq!(pod[key], Value::Null, "{key}");
    }
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"], json!({ "drop": ["ALL"] }));
    }
    let allowed = ["emptyDir", "name"];
    for volume in pod["volumes"].as_array().into_iter().flatten().filter_map(Value::as_object) {
        assert!(volume.keys().all(|key| allowed.contains(&key.as_str())), "{volume:?}");
    }
}

#[test]
fn the_guest_comes_in_from_an_image_of_its_own() {
    let settings = Settings { guest_image: "guest:1".into(), default_image: "tools:2".into(), ..settings() };
    let content = json_of(&blueprint(&spec(), &settings));
    let pod = &content["podTemplate"]["spec"];
    assert_eq!(pod["initContainers"][0]["image"], "guest:1");
    assert_eq!(pod["containers"][0]["image"], "tools:2");
    assert_eq!(pod["containers"][0]["command"], json!(["/.sandbar/sandbar", "guest", "pod"]));
    assert_eq!(
        pod["containers"][0]["volumeMounts"][0],
        json!({ "name": "guest", "mountPath": "/.sandbar", "readOnly": true })
    );
    let own = Spec { root: Root::Oci { image: "own:3".into() }, ..spec() };
    assert_eq!(json_of(&blueprint(&own, &settings))["podTemplate"]["spec"]["containers"][0]["image"], "own:3");
}

#[test]
fn nothing_goes_out_and_only_the_server_comes_in() {
    let outside = json_of(&blueprint(&spec(), &settings()));
    assert_eq!(outside["networkPolicy"], json!({ "ingress": [], "egress": [] }));
    assert_eq!(outside["networkPolicyManagement"], "Managed");
    let labels: BTreeMap<_, _> = [("app".to_owned(), "sandbar".to_owned())].into();
    let server = Some(ServerPods { namespace: "sandbar-system".into(), labels });
    let inside = json_of(&blueprint(&spec(), &Settings { server, ..settings() }));
    assert_eq!(
        inside["networkPolicy"],
        json!({ "egress": [], "ingress": [{
            "from": [{
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "sandbar-system" } },
                "podSelector": { "matchLabels": { "app": "sandbar" } },
            }],
            "ports": [{ "port": 7229, "protocol": "TCP" }],
        }] })
    );
}

#[test]
fn limits_are_the_containers_and_the_volumes() {
    let limits = Limits {
        memory: Some(HumanSize(512 << 20)),
        cpus: Some(1.5),
        tmpfs: Some(HumanSize(64 << 20)),
        disk: Some(HumanSize(1 << 30)),
        open_files: Some(256),
        ..Limits::default()
    };
    let content = json_of(&blueprint(&Spec { limits, ..spec() }, &settings()));
    let pod = &content["podTemplate"]["spec"];
    let sandbox = &pod["containers"][0];
    assert_eq!(sandbox["resources"]["limits"], json!({ "memory": "536870912", "cpu": "1500m" }));
    assert_eq!(sandbox["resources"]["requests"], sandbox["resources"]["limits"]);
    assert!(
        sandbox["env"]
            .as_array()
            .is_some_and(|env| env.contains(&json!({ "name": "SANDBAR_OPEN_FILES", "value": "256" })))
    );
    assert_eq!(
        pod["volumes"][1],
        json!({ "name": "tmp", "emptyDir": { "medium": "Memory", "sizeLimit": "67108864" } })
    );
    let volume = &content["volumeClaimTemplates"][0];
    assert_eq!(volume["metadata"]["name"], "data");
    assert_eq!(volume["spec"]["resources"]["requests"]["storage"], "1073741824");
}

#[test]
fn an_ephemeral_sandbox_claims_no_volume() {
    let mut ephemeral = spec();
    ephemeral.kubernetes.storage = Storage::Ephemeral;
    let content = json_of(&blueprint(&ephemeral, &settings()));
    assert_eq!(content["volumeClaimTemplates"], Value::Null);
    let volumes = &content["podTemplate"]["spec"]["volumes"];
    assert!(volumes.as_array().is_some_and(|list| list.contains(&json!({ "name": "data", "emptyDir": {} }))));
}

#[test]
fn the_name_follows_the_content_and_nothing_of_one_sandbox() {
    let name = |spec: &Spec, settings: &Settings| blueprint(spec, settings).name;
    let first = name(&spec(), &settings());
    let other = Spec { id: SandboxId::from_parts(9, [1; 10]), hostname: "other".into(), ..spec() };
    assert_eq!(name(&other, &settings()), first);
    let mut classed = spec();
    classed.kubernetes.runtime_class = Some("gvisor".into());
    assert_ne!(name(&classed, &settings()), first);
    assert_ne!(name(&spec(), &Settings { server_keys: vec!["OTHER".into()], ..settings() }), first);
    assert_ne!(name(&spec(), &Settings { guest_image: "newer".into(), ..settings() }), first);
}

#[test]
fn a_claim_is_ours_and_ends_by_itself_unless_renewed() {
    let now = Timestamp::from_second(1_000_000).unwrap_or(Timestamp::UNIX_EPOCH);
    let blueprint = blueprint(&spec(), &settings());
    let claim = blueprint.claim(&spec().id, None, &settings(), now);
    let claim = serde_json::to_value(claim).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(claim["metadata"]["name"], spec().id.as_str());
    assert_eq!(claim["metadata"]["labels"], json!({ MANAGED_BY: "sandbar", INSTANCE: "0123456789abcdef" }));
    assert_eq!(claim["metadata"]["annotations"]["sandbar.dev/storage"], "persistent");
    assert_eq!(
        claim["spec"],
        json!({
            "warmPoolRef": { "name": blueprint.name },
            "lifecycle": { "shutdownTime": "1970-01-19T13:46:40Z", "shutdownPolicy": "Delete" },
        })
    );
    let origin = Origin { instance: InstanceId::from_parts(1, [2; 10]), epoch: 77 };
    let claim = blueprint.claim(&spec().id, Some(&origin), &settings(), now);
    assert_eq!(crate::ownership::of(&claim), Some(Mark::Kept(origin)));
    assert_eq!(selector(&settings()), "app.kubernetes.io/managed-by=sandbar,sandbar.dev/instance=0123456789abcdef");
}

#[test]
fn what_a_pod_cannot_be_is_refused_with_a_fix() {
    let plain = spec();
    let limit = |limits: Limits| Spec { limits, ..spec() };
    let mut unbounded = limit(Limits { disk: Some(HumanSize(1)), ..Limits::default() });
    unbounded.kubernetes.storage = Storage::Ephemeral;
    let bad = [
        Spec { workspace: WorkspaceSource::Bind { path: "/src".into() }, ..plain.clone() },
        Spec { skills: Some("/skills".into()), ..plain.clone() },
        Spec { from: Some(sandbar_api::SnapshotId::from_parts(1, [0; 10])), ..plain.clone() },
        Spec { user: User::Root, ..plain.clone() },
        Spec { root: Root::Image { path: "/image".into() }, ..plain.clone() },
        Spec { root: Root::Oci { image: String::new() }, ..plain.clone() },
        Spec { root: Root::Oci { image: "two words".into() }, ..plain },
        limit(Limits { cpus: Some(-1.0), ..Limits::default() }),
        limit(Limits { cpus: Some(f64::NAN), ..Limits::default() }),
    ];
    for spec in bad {
        match Blueprint::of(&spec, &settings()) {
            Err(Error::BadSpec { fix, .. } | Error::BadTemplate { fix, .. }) => assert!(!fix.is_empty()),
            other => panic!("{spec:?}: {other:?}"),
        }
    }
    for spec in [limit(Limits { processes: Some(9), ..Limits::default() }), unbounded] {
        match Blueprint::of(&spec, &settings()) {
            Err(Error::NotEnforceable { fix, .. }) => assert!(!fix.is_empty()),
            other => panic!("{spec:?}: {other:?}"),
        }
    }
}
