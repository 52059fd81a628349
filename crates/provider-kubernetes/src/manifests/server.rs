//! The server itself: one Deployment with what it keeps, and the Service in front of it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Capabilities, ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
            EnvVarSource, HTTPGetAction, LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaim,
            PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
            Probe, ResourceRequirements, SeccompProfile, SecretKeySelector, SecretVolumeSource, SecurityContext,
            Service, ServicePort, ServiceSpec, Volume, VolumeMount, VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};

use super::{
    Bad, File, Given, NAME,
    config::{CONFIGURED, PLACE},
    configured,
    document::Documents,
    labels, metadata, selecting, selector,
    values::{StoreKind, Values},
};

pub(super) const PORT: u16 = 7227;
/// Where each server tells of itself, without TLS; at the other port one that stands by passes on to the leader.
pub(super) const HEALTH: u16 = 7230;
/// Below the volume, because a volume's own directory is writable for a group, which a home must not be.
const HOME: &str = "/var/lib/sandbar/home";
const TLS: &str = "/etc/sandbar/tls";
const KEY: &str = "/etc/sandbar/key";
const TEMPLATES: &str = "/etc/sandbar/templates";
/// The image's user.
const USER: i64 = 1000;
const DATABASE: &str = "SANDBAR_DATABASE";

pub(super) fn push(values: &Values, templates: &[Given], files: &[File], documents: &mut Documents) -> Result<(), Bad> {
    let namespace = &values.server.namespace;
    let brought = files.iter().map(|file| (file.name.clone(), file.text.clone()));
    let map = ConfigMap {
        metadata: metadata("sandbar-config", namespace),
        data: Some(brought.chain([(CONFIGURED.to_owned(), configured::text(values))]).collect()),
        ..ConfigMap::default()
    };
    documents.push("What the server is told: of the cluster, and what was brought along.", &map)?;
    if !templates.is_empty() {
        let files = templates.iter().map(|given| (format!("{}.toml", given.template.name), given.text.clone()));
        let map = ConfigMap {
            metadata: metadata("sandbar-templates", namespace),
            data: Some(files.collect()),
            ..ConfigMap::default()
        };
        documents.push("The templates as the server reads them.", &map)?;
    }
    if values.store.kind == StoreKind::Sqlite {
        documents.push("What the server keeps: its database, output and key.", &volume(values))?;
    }
    let why = match values.store.kind {
        StoreKind::Sqlite => {
            "One server over one volume: the old one ends before the new one starts. Sandboxes do not notice."
        }
        StoreKind::Postgresql => {
            "Several servers over one PostgreSQL: one leads, the others pass on to it and take over."
        }
    };
    documents.push(why, &deployment(values, !templates.is_empty()))?;
    let service = Service {
        metadata: metadata(NAME, namespace),
        spec: Some(ServiceSpec {
            type_: Some(values.server.service.as_str().into()),
            selector: Some(selector()),
            ports: Some(vec![ServicePort {
                name: Some("https".into()),
                port: i32::from(PORT),
                target_port: Some(IntOrString::String("https".into())),
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    documents.push("API and the way to sandboxes, over TLS.", &service)
}

fn volume(values: &Values) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: metadata(NAME, &values.server.namespace),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: values.store.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(
                    [("storage".to_owned(), Quantity(values.store.size.to_string().trim_end_matches('B').to_owned()))]
                        .into(),
                ),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

fn deployment(values: &Values, templates: bool) -> Deployment {
    let strategy = match values.store.kind {
        StoreKind::Sqlite => "Recreate",
        StoreKind::Postgresql => "RollingUpdate",
    };
    let mut labels = labels();
    labels.extend(selector());
    Deployment {
        metadata: metadata(NAME, &values.server.namespace),
        spec: Some(DeploymentSpec {
            replicas: Some(i32::from(values.replicas())),
            selector: selecting(selector()),
            strategy: Some(DeploymentStrategy { type_: Some(strategy.into()), rolling_update: None }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(values, templates)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn pod(values: &Values, templates: bool) -> PodSpec {
    let server = &values.server;
    let policy = values.image_pull_policy.map(|policy| policy.as_str().to_owned());
    let home = VolumeMount { mount_path: "/var/lib/sandbar".into(), name: "data".into(), ..VolumeMount::default() };
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let key = format!("{KEY}/secret.key");
    let mut prepare = vec!["kubernetes", "prepare", "--key", &key, "--config", PLACE];
    let mut first = vec![home.clone(), mount("key", KEY), mount("config", PLACE)];
    let mut then = vec![home, mount("tls", TLS), mount("config", PLACE)];
    if templates {
        prepare.extend(["--templates", TEMPLATES]);
        first.push(mount("templates", TEMPLATES));
        then.push(mount("templates", TEMPLATES));
    }
    then.push(VolumeMount { name: "tmp".into(), mount_path: "/tmp".into(), ..VolumeMount::default() });
    let container = Container {
        image: Some(server.image.clone()),
        image_pull_policy: policy,
        security_context: Some(locked()),
        resources: Some(ResourceRequirements {
            requests: filled(&server.resources.requests),
            limits: filled(&server.resources.limits),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    };
    PodSpec {
        service_account_name: Some(NAME.into()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            fs_group_change_policy: Some("OnRootMismatch".into()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        enable_service_links: Some(false),
        init_containers: Some(vec![Container {
            name: "prepare".into(),
            args: Some(prepare.into_iter().map(Into::into).collect()),
            env: Some(vec![home_variable()]),
            volume_mounts: Some(first),
            ..container.clone()
        }]),
        containers: vec![Container {
            name: "server".into(),
            args: Some(up(values.store.kind)),
            env: Some(environment(values)),
            ports: Some(vec![port("https", PORT), port("health", HEALTH)]),
            // Recovery of many sandboxes takes its time, and a restart in the middle would begin it anew.
            startup_probe: Some(Probe { failure_threshold: Some(60), ..lives() }),
            // One that hangs does not end when it is asked to, and the others wait for its lead.
            liveness_probe: Some(Probe {
                failure_threshold: Some(4),
                termination_grace_period_seconds: Some(5),
                ..lives()
            }),
            readiness_probe: Some(asks("/readyz", "https", "HTTPS")),
            volume_mounts: Some(then),
            ..container
        }],
        volumes: Some(volumes(values, templates)),
        image_pull_secrets: (!values.image_pull_secrets.is_empty()).then(|| {
            values.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect()
        }),
        node_selector: filled(&server.node_selector),
        tolerations: (!server.tolerations.is_empty()).then(|| server.tolerations.clone()),
        ..PodSpec::default()
    }
}

fn up(store: StoreKind) -> Vec<String> {
    let (listen, cert, key) = (format!("0.0.0.0:{PORT}"), format!("{TLS}/tls.crt"), format!("{TLS}/tls.key"));
    let health = format!("0.0.0.0:{HEALTH}");
    let advertise = format!("$(POD_IP):{PORT}");
    let shared = ["--advertise", &advertise];
    ["up", "--provider", "kubernetes"]
        .into_iter()
        .chain(["--listen", &listen, "--tls-cert", &cert, "--tls-key", &key, "--health-listen", &health])
        .chain(["--log-format", "json"])
        .chain(shared.into_iter().filter(|_| store == StoreKind::Postgresql))
        .map(str::to_owned)
        .collect()
}

fn environment(values: &Values) -> Vec<EnvVar> {
    let mut variables = vec![home_variable()];
    if values.store.kind == StoreKind::Postgresql {
        let from = SecretKeySelector { name: values.store.url_secret.clone(), key: "url".into(), optional: None };
        variables.push(EnvVar {
            name: DATABASE.into(),
            value: None,
            value_from: Some(EnvVarSource { secret_key_ref: Some(from), ..EnvVarSource::default() }),
        });
        // Where the others find this one.
        let own = ObjectFieldSelector { field_path: "status.podIP".into(), api_version: None };
        variables.push(EnvVar {
            name: "POD_IP".into(),
            value: None,
            value_from: Some(EnvVarSource { field_ref: Some(own), ..EnvVarSource::default() }),
        });
    }
    variables
}

fn home_variable() -> EnvVar {
    EnvVar { name: "SANDBAR_HOME".into(), value: Some(HOME.into()), value_from: None }
}

fn volumes(values: &Values, templates: bool) -> Vec<Volume> {
    let named = |name: &str| Volume { name: name.into(), ..Volume::default() };
    let secret = |name: &str, optional| SecretVolumeSource {
        secret_name: Some(name.into()),
        // Ours by the pod's group, and nobody else's.
        default_mode: Some(0o440),
        optional,
        ..SecretVolumeSource::default()
    };
    let own = values.store.kind == StoreKind::Sqlite;
    let data = match values.store.kind {
        StoreKind::Sqlite => Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: NAME.into(),
                read_only: None,
            }),
            ..named("data")
        },
        StoreKind::Postgresql => Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named("data") },
    };
    let map = |name: &str| ConfigMapVolumeSource { name: name.into(), ..ConfigMapVolumeSource::default() };
    let mut volumes = vec![
        data,
        Volume { config_map: Some(map("sandbar-config")), ..named("config") },
        Volume { secret: Some(secret(&values.server.tls_secret, None)), ..named("tls") },
        Volume { secret: Some(secret(&values.server.key_secret, own.then_some(true))), ..named("key") },
        Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named("tmp") },
    ];
    if templates {
        volumes.push(Volume { config_map: Some(map("sandbar-templates")), ..named("templates") });
    }
    volumes
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// Asks this very server, which says nothing of the one that leads.
fn lives() -> Probe {
    asks("/healthz", "health", "HTTP")
}

fn asks(path: &str, port: &str, scheme: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String(port.into()),
            scheme: Some(scheme.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(5),
        timeout_seconds: Some(5),
        ..Probe::default()
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

fn filled<K: Clone + Ord, V: Clone>(map: &BTreeMap<K, V>) -> Option<BTreeMap<K, V>> {
    (!map.is_empty()).then(|| map.clone())
}
