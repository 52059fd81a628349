//! What this host can enforce, found by making a sandbox and asking inside it. A configuration is not evidence.

use sandbar_api::SandboxId;
use sandbar_guest::protocol::{FollowFrom, FollowRequest, StartRequest, follow_event::Event, follow_request::Message};
use sandbar_provider::{Error, Finding, HostReport, Provider, Spec};

use crate::local::Local;

/// Prints the facts on which the findings stand; the last line tells how a forbidden write ended.
const SCRIPT: &str =
    "cat /proc/self/status; echo net:; cat /proc/net/dev; echo write:; (echo x > /proc/self/comm) 2>&1; echo status=$?";

pub(crate) async fn probe(local: &Local, ranges: bool) -> HostReport {
    let mut findings = vec![kernel()];
    match trial(local).await {
        Ok(facts) => findings.extend(from_inside(&facts, ranges)),
        Err(Error::NotEnforceable { layer, cause, fix }) => {
            findings.push(Finding {
                layer: layer.into(),
                works: false,
                required: true,
                evidence: cause,
                fix: Some(fix),
            });
        }
        Err(error) => findings.push(Finding {
            layer: "sandbox".into(),
            works: false,
            required: true,
            evidence: with_cause(&error),
            fix: Some("The evidence above names what failed.".into()),
        }),
    }
    HostReport { provider: local.name().into(), findings }
}

fn with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Finding { layer: "kernel".into(), works: true, required: true, evidence: format!("Linux {release}"), fix: None }
}

/// Makes a sandbox, runs the script in it, removes it.
async fn trial(local: &Local) -> Result<String, Error> {
    let mut random = [0; 10];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::io("get randomness")(errno.into()))?;
    let id = SandboxId::from_parts(0, random);
    let spec = Spec::standard(id.clone(), "probe");
    local.create(&spec).await?;
    let facts = ask(local, &id).await;
    local.destroy(&id).await?;
    facts
}

async fn ask(local: &Local, id: &SandboxId) -> Result<String, Error> {
    let unreachable = |status: tonic::Status| Error::Unreachable { id: id.clone(), cause: status.message().into() };
    let mut guest = local.connect(id).await?;
    let start = StartRequest {
        process_id: "probe".into(),
        argv: ["/bin/sh", "-c", SCRIPT].map(String::from).into(),
        cwd: "/".into(),
        ..StartRequest::default()
    };
    guest.start(start).await.map_err(unreachable)?;
    let from = FollowRequest { message: Some(Message::From(FollowFrom { process_id: "probe".into(), offset: 0 })) };
    let mut events = guest.follow(tokio_stream::once(from)).await.map_err(unreachable)?.into_inner();
    let mut output = Vec::new();
    while let Some(event) = events.message().await.map_err(unreachable)? {
        match event.event {
            Some(Event::Output(chunk)) => output.extend_from_slice(&chunk.data),
            Some(Event::Exit(_)) => break,
            None => {}
        }
    }
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn from_inside(facts: &str, ranges: bool) -> Vec<Finding> {
    let field = |name: &str| {
        let words = facts.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
        words.map_or_else(|| "not shown".into(), |words| words.collect::<Vec<_>>().join(" "))
    };
    let finding = |layer: &str, works: bool, evidence: String, fix: &str| Finding {
        layer: layer.into(),
        works,
        required: true,
        evidence,
        fix: (!works).then(|| fix.to_owned()),
    };
    let (capabilities, bounding) = (field("CapEff:"), field("CapBnd:"));
    let zero = |set: &str| !set.is_empty() && set.bytes().all(|digit| digit == b'0');
    let interfaces = facts.split("net:\n").nth(1).unwrap_or("").split("write:").next().unwrap_or("");
    let names: Vec<&str> =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    let uid = field("Uid:");
    let refused = facts.contains("ermission denied") && !facts.contains("status=0");
    vec![
        finding("user, mount, pid, net, ipc, uts and cgroup namespaces", true, "a sandbox was made in them".into(), ""),
        Finding {
            layer: "uid separation".into(),
            works: ranges,
            required: false,
            evidence: if ranges {
                format!("each sandbox has a range of 65536 uids; inside, Uid: {uid}")
            } else {
                format!("an ordinary user has one uid, shared by all sandboxes and their guests; inside, Uid: {uid}")
            },
            fix: (!ranges).then(|| "Run `sandbar up` as root to give each sandbox uids of its own.".to_owned()),
        },
        finding(
            "capabilities",
            zero(&capabilities) && zero(&bounding),
            format!("inside, CapEff {capabilities}, CapBnd {bounding}"),
            "The kernel must let a process drop its capabilities.",
        ),
        finding(
            "no_new_privs",
            field("NoNewPrivs:") == "1",
            format!("inside, NoNewPrivs {}", field("NoNewPrivs:")),
            "Use kernel 4.10 or newer.",
        ),
        finding(
            "seccomp",
            field("Seccomp:") == "2",
            format!("inside, Seccomp {} (2 is a filter)", field("Seccomp:")),
            "Use a kernel with CONFIG_SECCOMP_FILTER.",
        ),
        finding(
            "landlock",
            refused,
            if refused {
                "inside, a write that only Landlock forbids was refused".into()
            } else {
                "inside, a write that Landlock forbids went through".into()
            },
            "Use kernel 6.2 or newer with landlock in the `lsm=` list.",
        ),
        finding(
            "network",
            names == ["lo"],
            format!("inside, interfaces: {}", names.join(" ")),
            "The kernel needs network namespaces.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Uid:\t1000\t1000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nnet:\nInter-| x\n face |bytes\n    lo: 0 0\nwrite:\nsh: Permission denied\nstatus=2\n";

    #[test]
    fn what_is_not_seen_inside_is_not_in_force() {
        assert!(from_inside(GOOD, true).iter().all(|finding| finding.works));
        for (good, bad, layer) in [
            ("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb", "capabilities"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privs"),
            ("Seccomp:\t2", "Seccomp:\t0", "seccomp"),
            ("    lo:", "  eth0: 1\n    lo:", "network"),
            ("sh: Permission denied\nstatus=2", "status=0", "landlock"),
        ] {
            let report = from_inside(&GOOD.replace(good, bad), true);
            let broken: Vec<_> = report.iter().filter(|finding| !finding.works).map(|f| f.layer.as_str()).collect();
            assert_eq!(broken, [layer]);
        }
        assert!(from_inside("", true).iter().filter(|finding| !finding.works).count() >= 5);
    }
}
