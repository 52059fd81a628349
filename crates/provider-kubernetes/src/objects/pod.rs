//! The pod of a sandbox: the template's image with our guest as its first process, under the restricted Pod Security
//! standard. It holds no credential, and nothing in it tells whose sandbox it will be.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, LocalObjectReference,
        PersistentVolumeClaimSpec, PodDNSConfig, PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile,
        SecurityContext, Volume, VolumeMount, VolumeResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use sandbar_api::{Layer, Limits, Requirement, Storage};
use sandbar_provider::Spec;

use crate::Settings;

/// Of the container that is the sandbox.
pub const CONTAINER: &str = "sandbox";
/// Where the guest listens.
pub const GUEST_PORT: u16 = 7229;
/// The volume that a stopped sandbox keeps.
pub const DATA: &str = "data";
/// The workload's user and group, as everywhere.
const AGENT: i64 = 1000;
/// Ours is the first process and ends with everything else at once.
const GRACE: i64 = 2;
/// Certificates to trust, and room to replace them.
const RUN_SIZE: u64 = 16 << 20;

pub(crate) fn spec(spec: &Spec, settings: &Settings, image: &str) -> PodSpec {
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // Names are the gate's business; without a nameserver that exists nothing waits for one that does not answer.
        dns_policy: Some("None".into()),
        dns_config: Some(PodDNSConfig { nameservers: Some(vec!["127.0.0.1".into()]), ..PodDNSConfig::default() }),
        // A guest that dies takes the sandbox's processes along: that must be seen, not papered over.
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(GRACE),
        runtime_class_name: spec.kubernetes.runtime_class.clone(),
        // Where uids of its own are demanded the pod gets a user namespace; not every cluster has them.
        host_users: (spec.requirement(Layer::Users) == Requirement::Required).then_some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(AGENT),
            run_as_group: Some(AGENT),
            fs_group: Some(AGENT),
            // Otherwise every start walks over all files of the volume.
            fs_group_change_policy: Some("OnRootMismatch".into()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        init_containers: Some(vec![install(spec, settings)]),
        containers: vec![sandbox(spec, settings, image)],
        volumes: Some(volumes(spec)),
        image_pull_secrets: filled(
            settings.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect(),
        ),
        node_selector: (!settings.node_selector.is_empty()).then(|| settings.node_selector.clone()),
        tolerations: filled(settings.tolerations.clone()),
        ..PodSpec::default()
    }
}

/// Lays the guest's binary where the sandbox's own image finds it.
fn install(spec: &Spec, settings: &Settings) -> Container {
    Container {
        name: "install".into(),
        image: Some(settings.guest_image.clone()),
        image_pull_policy: settings.image_pull_policy.clone(),
        command: Some(["/sandbar", "guest", "install", "/.sandbar"].map(String::from).into()),
        security_context: Some(locked()),
        resources: resources(&spec.limits),
        volume_mounts: Some(vec![mount("guest", "/.sandbar")]),
        ..Container::default()
    }
}

fn sandbox(spec: &Spec, settings: &Settings, image: &str) -> Container {
    let mut env = vec![
        variable("SANDBAR_SERVER_KEYS", settings.server_keys.join(",")),
        variable("SANDBAR_GUEST_LISTEN", format!("0.0.0.0:{GUEST_PORT}")),
    ];
    // What it cannot be read from is no map of layers, which this one is.
    env.extend(serde_json::to_string(&spec.layers).ok().map(|layers| variable("SANDBAR_LAYERS", layers)));
    env.extend(spec.limits.open_files.map(|most| variable("SANDBAR_OPEN_FILES", most.to_string())));
    let data = |path: &str, below: &str| VolumeMount { sub_path: Some(below.into()), ..mount(DATA, path) };
    Container {
        name: CONTAINER.into(),
        image: Some(image.into()),
        image_pull_policy: settings.image_pull_policy.clone(),
        command: Some(["/.sandbar/sandbar", "guest", "pod"].map(String::from).into()),
        // An image's own arguments are for its own entry point.
        args: Some(Vec::new()),
        env: Some(env),
        ports: Some(vec![ContainerPort {
            name: Some("guest".into()),
            container_port: i32::from(GUEST_PORT),
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        security_context: Some(locked()),
        resources: resources(&spec.limits),
        working_dir: Some("/".into()),
        volume_mounts: Some(vec![
            VolumeMount { read_only: Some(true), ..mount("guest", "/.sandbar") },
            mount("tmp", "/tmp"),
            mount("run", "/run/sandbar"),
            mount("shm", "/dev/shm"),
            data("/workspace", "workspace"),
            data("/home/agent", "home"),
        ]),
        ..Container::default()
    }
}

fn locked() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// What is bounded is also set aside: two sandboxes that were promised the same memory would fail each other.
fn resources(limits: &Limits) -> Option<ResourceRequirements> {
    let mut bounds = BTreeMap::new();
    if let Some(memory) = limits.memory {
        bounds.insert("memory".to_owned(), bytes(memory.0));
    }
    if let Some(cpu) = limits.cpus {
        bounds.insert("cpu".to_owned(), Quantity(format!("{}m", (cpu * 1000.0).ceil())));
    }
    (!bounds.is_empty()).then(|| ResourceRequirements {
        requests: Some(bounds.clone()),
        limits: Some(bounds),
        ..ResourceRequirements::default()
    })
}

fn volumes(spec: &Spec) -> Vec<Volume> {
    let mut volumes = vec![
        empty("guest", EmptyDirVolumeSource::default()),
        empty("tmp", memory(spec.limits.tmpfs.map(|size| size.0))),
        empty("run", memory(Some(RUN_SIZE))),
        empty("shm", memory(spec.limits.tmpfs.map(|size| size.0))),
    ];
    // A volume that is claimed takes this place by its name.
    if spec.kubernetes.storage == Storage::Ephemeral {
        volumes.push(empty(DATA, EmptyDirVolumeSource::default()));
    }
    volumes
}

/// What a stopped sandbox keeps.
pub(crate) fn claimed(spec: &Spec, settings: &Settings) -> Option<PersistentVolumeClaimSpec> {
    (spec.kubernetes.storage == Storage::Persistent).then(|| {
        let size = spec.limits.disk.unwrap_or(settings.disk);
        PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: spec.kubernetes.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), bytes(size.0))].into()),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }
    })
}

fn memory(size: Option<u64>) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: size.map(bytes) }
}

fn empty(name: &str, source: EmptyDirVolumeSource) -> Volume {
    Volume { name: name.into(), empty_dir: Some(source), ..Volume::default() }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value), value_from: None }
}

fn bytes(count: u64) -> Quantity {
    Quantity(count.to_string())
}

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
