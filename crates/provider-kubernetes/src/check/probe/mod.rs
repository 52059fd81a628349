//! Four pods that show what looking does not: that the controller acts, that images come, that policies hold, and that a
//! runtime is what it is called.

mod judged;
mod objects;

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

use agent_sandbox::{Conditions as _, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, LogParams, PostParams},
    runtime::wait::await_condition,
};
use sandbar_api::{ClusterCheck, ClusterFinding};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    finding::{Line, answer, code, green, grey, instead, red, told},
    reach::{Said, Tried, read},
};
use crate::{Settings, objects::GUEST_PORT};
use judged::Connections;
use objects::{Kind, Names};

/// A controller that lives looks at a claim long before this.
const ALIVE: Duration = Duration::from_secs(20);
/// Images may have to be pulled.
const STARTS: Duration = Duration::from_secs(120);
const TELLS: Duration = Duration::from_secs(90);
const AGAIN: Duration = Duration::from_millis(300);
const ROLES: [&str; 4] = ["image", "reacher", "sealed", "listener"];

struct Probe<'a> {
    claims: Api<SandboxClaim>,
    pods: Api<Pod>,
    client: &'a Client,
    settings: &'a Settings,
    runtime_class: Option<&'a str>,
    names: Names,
}

/// What ended it; the lines that follow from it.
struct Ended(Vec<ClusterFinding>);

pub(super) async fn run(
    client: &Client,
    settings: &Settings,
    asked: &ClusterCheck,
    cancelled: &CancellationToken,
) -> Vec<ClusterFinding> {
    let run = format!("{:08x}", RandomState::new().build_hasher().finish() >> 32);
    let probe = Probe {
        claims: Api::namespaced(client.clone(), &settings.namespace),
        pods: Api::namespaced(client.clone(), &settings.namespace),
        client,
        settings,
        runtime_class: asked.runtime_class.as_deref(),
        names: Names::new(run, &settings.namespace),
    };
    let mut findings = Vec::new();
    tokio::select! {
        outcome = probe.observe(&mut findings) => if let Err(Ended(last)) = outcome { findings.extend(last) },
        () = cancelled.cancelled() => {}
    }
    for line in Line::OBSERVED {
        if !findings.iter().any(|finding| finding.check == line.name()) {
            findings.push(grey(line, "not observed: it did not come to that", None));
        }
    }
    findings.extend(probe.clean_up().await);
    findings
}

impl Probe<'_> {
    async fn observe(&self, findings: &mut Vec<ClusterFinding>) -> Result<(), Ended> {
        let listener = self.claim("listener", Kind::Open, &[], None).await?;
        for (kind, class) in [(Kind::Open, None), (Kind::Sealed, self.runtime_class)] {
            self.blueprint(kind, class, &listener).await?;
        }
        findings.push(self.controller().await?);
        let begun = Instant::now();
        let listening = self.started("listener").await?;
        findings.push(green(Line::Image, format!("`{}` was there or was pulled", self.settings.guest_image)));
        let place = findings.len();
        // Beside each other: images may be large, and neither says anything of the other.
        let (image, observed) =
            tokio::join!(self.sandbox_image(&listener), self.between(&listener, &listening, begun, findings));
        findings.insert(place, image);
        observed
    }

    /// The image of templates without one of their own, with our program in it as the guest would be.
    async fn sandbox_image(&self, listener: &SandboxClaim) -> ClusterFinding {
        let starting = async {
            self.blueprint(Kind::Image, None, listener).await?;
            self.claim("image", Kind::Image, &[], Some(listener)).await?;
            self.started("image").await
        };
        let image = &self.settings.default_image;
        match starting.await {
            Ok(_) => green(Line::SandboxImage, format!("`{image}` was there or was pulled, and a pod of it runs")),
            Err(Ended(found)) => {
                let unsaid = || grey(Line::SandboxImage, "not observed: nobody says why", None);
                instead(Line::SandboxImage, found.into_iter().next().unwrap_or_else(unsaid))
            }
        }
    }

    /// Whether policies keep two pods from each other, and what the sealed one runs under.
    async fn between(
        &self,
        listener: &SandboxClaim,
        listening: &str,
        begun: Instant,
        findings: &mut Vec<ClusterFinding>,
    ) -> Result<(), Ended> {
        let sealed = self.claim("sealed", Kind::Sealed, &[listening.to_owned()], Some(listener)).await;
        sealed?;
        let closed = self.started("sealed").await?;
        let evidence =
            format!("two pods like those of sandboxes were ready after {:.1} s", begun.elapsed().as_secs_f64());
        findings.push(green(Line::Pod, evidence));
        let targets = [listening.to_owned(), closed.clone()];
        self.claim("reacher", Kind::Open, &targets, Some(listener)).await?;
        self.started("reacher").await?;
        let (of_sealed, of_reacher) = tokio::join!(self.said("sealed"), self.said("reacher"));
        let (of_sealed, of_reacher) = (of_sealed?, of_reacher?);
        let tried = |said: &[Said], target: &str| -> Option<Tried> {
            said.iter().find_map(|said| match said {
                Said::Tried(tried) if tried.target.to_string() == target => Some(tried.clone()),
                _ => None,
            })
        };
        findings.extend(judged::network(&Connections {
            allowed: tried(&of_reacher, listening).as_ref(),
            out: tried(&of_sealed, listening).as_ref(),
            into: tried(&of_reacher, &closed).as_ref(),
        }));
        if let Some(class) = self.runtime_class {
            findings.push(judged::runtime(class, kernel(&of_reacher), kernel(&of_sealed)));
        }
        Ok(())
    }

    async fn claim(
        &self,
        role: &str,
        kind: Kind,
        targets: &[String],
        owner: Option<&SandboxClaim>,
    ) -> Result<SandboxClaim, Ended> {
        let claim = self.names.claimed(role, kind, targets, owner);
        self.claims.create(&PostParams::default(), &claim).await.map_err(|error| refused("a SandboxClaim", &error))
    }

    async fn blueprint(&self, kind: Kind, class: Option<&str>, owner: &SandboxClaim) -> Result<(), Ended> {
        let template = self
            .names
            .template(kind, self.settings, class, owner)
            .map_err(|error| Ended(vec![red(Line::Pod, told(&error), "Correct `kubernetes.toml` of the home.")]))?;
        let namespace = &self.settings.namespace;
        let params = PostParams::default();
        let templates = Api::<SandboxTemplate>::namespaced(self.client.clone(), namespace);
        templates.create(&params, &template).await.map_err(|error| refused("a SandboxTemplate", &error))?;
        let pools = Api::<SandboxWarmPool>::namespaced(self.client.clone(), namespace);
        let pool = self.names.pool(kind, owner);
        pools.create(&params, &pool).await.map_err(|error| refused("a SandboxWarmPool", &error))?;
        Ok(())
    }

    /// Whatever it says of the claim, somebody looked at it.
    async fn controller(&self) -> Result<ClusterFinding, Ended> {
        let begun = Instant::now();
        let seen = |claim: Option<&SandboxClaim>| claim.is_some_and(|claim| claim.ready().is_some());
        let name = self.names.claim("listener");
        let waiting = await_condition(self.claims.clone(), &name, seen);
        match timeout(ALIVE, waiting).await {
            Ok(Ok(_)) => {
                Ok(green(Line::Controller, format!("answered a claim after {} ms", begun.elapsed().as_millis())))
            }
            Ok(Err(error)) => Err(Ended(vec![grey(Line::Controller, format!("not observed: {}", told(&error)), None)])),
            Err(_) => {
                let evidence = format!("no answer to a claim within {} s", ALIVE.as_secs());
                let fix = "Look whether the agent-sandbox controller runs, with --extensions: `kubectl -n agent-sandbox-system get pods`.";
                Err(Ended(vec![red(Line::Controller, evidence, fix)]))
            }
        }
    }

    /// The address its pod listens on.
    async fn started(&self, role: &str) -> Result<String, Ended> {
        let name = self.names.claim(role);
        let over = |claim: Option<&SandboxClaim>| {
            claim.is_none_or(|claim| claim.is_true("Ready") || claim.is_true("Finished"))
        };
        let waiting = await_condition(self.claims.clone(), &name, over);
        let pulled = self.not_pulled(&name);
        let claim = tokio::select! {
            waited = timeout(STARTS, waiting) => match waited {
                Ok(Ok(claim)) => claim,
                Ok(Err(error)) => return Err(Ended(vec![grey(Line::Pod, format!("not observed: {}", told(&error)), None)])),
                Err(_) => return Err(Ended(vec![self.why_not(&name).await])),
            },
            finding = pulled => return Err(Ended(vec![finding])),
        };
        let address = claim.as_ref().filter(|claim| claim.is_true("Ready")).and_then(|claim| {
            claim.sandbox().and_then(|sandbox| sandbox.pod_ips.first()).map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{GUEST_PORT}"),
                false => format!("{ip}:{GUEST_PORT}"),
            })
        });
        match address {
            Some(address) => Ok(address),
            None => Err(Ended(vec![self.why_not(&name).await])),
        }
    }

    /// Returns once it is certain that the image will not come soon.
    async fn not_pulled(&self, name: &str) -> ClusterFinding {
        loop {
            if let Some(finding) = self.pods.get_opt(name).await.ok().flatten().and_then(|pod| unpulled(&pod)) {
                return finding;
            }
            sleep(AGAIN).await;
        }
    }

    async fn why_not(&self, name: &str) -> ClusterFinding {
        let claim = self.claims.get_opt(name).await.ok().flatten();
        let said =
            claim.as_ref().and_then(|claim| claim.ready()).map(|ready| format!("{}: {}", ready.reason, ready.message));
        let pod = self.pods.get_opt(name).await.ok().flatten();
        let detail = pod
            .as_ref()
            .and_then(|pod| unscheduled(pod).or_else(|| waits(pod).map(|(_, why, what)| format!("{why}: {what}"))));
        let told = [said, detail].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let told = if told.is_empty() { "nobody says why".to_owned() } else { told };
        red(
            Line::Pod,
            format!("a pod like those of sandboxes does not start: {told}"),
            "Remove what it names; `kubectl describe pod` shows more.",
        )
    }

    async fn said(&self, role: &str) -> Result<Vec<Said>, Ended> {
        let (name, begun) = (self.names.claim(role), Instant::now());
        loop {
            let said = match self.pods.logs(&name, &LogParams::default()).await {
                Ok(log) => read(&log),
                Err(error) if begun.elapsed() > TELLS => {
                    let evidence = format!("not observed: the log of a pod cannot be read: {}", answer(&error));
                    return Err(Ended(vec![grey(Line::NetworkPolicy, evidence, None)]));
                }
                Err(_) => Vec::new(),
            };
            if said.last() == Some(&Said::Done) || begun.elapsed() > TELLS {
                return Ok(said);
            }
            sleep(AGAIN).await;
        }
    }

    /// The first claim last: everything else belongs to it.
    async fn clean_up(&self) -> Option<ClusterFinding> {
        let mut left = Vec::new();
        for role in ROLES {
            match self.claims.delete(&self.names.claim(role), &DeleteParams::background()).await {
                Err(error) if code(&error) != Some(404) => left.push(answer(&error)),
                _ => {}
            }
        }
        (!left.is_empty()).then(|| {
            let fix = format!(
                "`kubectl delete sandboxclaims -l {}`; they also end by themselves after 10 minutes.",
                objects::PROBE
            );
            red(Line::CleanUp, format!("what was made for this could not be removed: {}", left.join("; ")), fix)
        })
    }
}

fn refused(what: &str, error: &kube::Error) -> Ended {
    let fix =
        "Remove what it names: a missing right is granted by `sandbar kubernetes manifests`, a quota can be raised.";
    Ended(vec![red(Line::Controller, format!("{what} is refused: {}", answer(error)), fix)])
}

fn kernel(said: &[Said]) -> Option<&str> {
    said.iter().find_map(|said| match said {
        Said::Kernel(text) => Some(text.as_str()),
        _ => None,
    })
}

/// That an image of it will not come soon, once that is certain.
fn unpulled(pod: &Pod) -> Option<ClusterFinding> {
    let (image, reason, message) = waits(pod)?;
    let certain = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
    certain.contains(&reason).then(|| {
        let fix =
            "Push it where the nodes can pull it, or name another (`guest_image`, and `image` for sandboxes); or give image_pull_secrets.";
        red(Line::Image, format!("`{image}` cannot be pulled: {reason}: {message}"), fix)
    })
}

/// The image of the first container that waits, for what, and what is said of it.
fn waits(pod: &Pod) -> Option<(&str, &str, &str)> {
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let (container, waiting) = containers
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)))?;
    Some((&container.image, waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
}

fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    Some(format!("{}: {}", scheduled.reason.clone()?, scheduled.message.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(status: Value) -> Option<String> {
        let pod = serde_json::from_value(json!({ "metadata": {}, "status": status }));
        unpulled(&pod.unwrap_or_else(|error| panic!("{error}"))).map(|finding| finding.evidence)
    }

    #[test]
    fn an_image_that_does_not_come_is_named() {
        let of = |image: &str, reason: &str| {
            let state = json!({ "waiting": { "reason": reason, "message": "no such host" } });
            json!([{ "name": "c", "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": state }])
        };
        let init =
            |image, reason, rest| json!({ "initContainerStatuses": of(image, reason), "containerStatuses": rest });
        let own = told(json!({ "containerStatuses": of("machine:1", "ImagePullBackOff") }));
        assert_eq!(own.as_deref(), Some("`machine:1` cannot be pulled: ImagePullBackOff: no such host"));
        let guest = told(init("sandbar:1", "ErrImagePull", of("machine:1", "PodInitializing")));
        assert_eq!(guest.as_deref(), Some("`sandbar:1` cannot be pulled: ErrImagePull: no such host"));
        assert_eq!(told(json!({ "containerStatuses": of("machine:1", "ContainerCreating") })), None);
        assert_eq!(told(json!({})), None);
    }
}
