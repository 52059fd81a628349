//! What the pods told, and what follows from it. Pure.

use sandbar_api::ClusterFinding;

use crate::check::{
    finding::{Line, green, grey, red},
    reach::Tried,
};

const ENFORCE: &str =
    "Use a network plugin that enforces NetworkPolicy (for example Calico, Cilium or kube-network-policies).";

/// Three connections of the same kind: one that has to work, and two that must not.
#[derive(Debug)]
pub(super) struct Connections<'a> {
    /// Between two pods whose policies allow it.
    pub(super) allowed: Option<&'a Tried>,
    /// From a sandbox's pod, to where everybody is let in.
    pub(super) out: Option<&'a Tried>,
    /// To a sandbox's pod, from where everything may be reached.
    pub(super) into: Option<&'a Tried>,
}

pub(super) fn network(seen: &Connections<'_>) -> Vec<ClusterFinding> {
    let (Some(allowed), Some(out), Some(into)) = (seen.allowed, seen.out, seen.into) else {
        return vec![grey(Line::NetworkPolicy, "not observed: the pods did not tell how their connections went", None)];
    };
    if allowed.reached == 0 {
        let why = allowed.refusal.as_deref().unwrap_or("no reason told");
        let evidence = format!("not observed: not even what policies allow was reached ({why})");
        return vec![grey(Line::NetworkPolicy, evidence, Some("Look whether pods can reach each other at all."))];
    }
    let ways = [("out of", out), ("into", into)];
    let through: Vec<_> = ways.iter().filter(|(_, tried)| tried.last_reached).map(|(way, _)| *way).collect();
    if !through.is_empty() {
        let evidence =
            format!("observed: not enforced; connections {} a sandbox's pod get through", through.join(" and "));
        return vec![red(Line::NetworkPolicy, evidence, ENFORCE)];
    }
    let evidence = format!(
        "observed: of {} connections out of a sandbox's pod and {} into it the last ones did not get through, while {} of {} \
         that are allowed did",
        out.attempts, into.attempts, allowed.reached, allowed.attempts
    );
    let mut findings = vec![green(Line::NetworkPolicy, evidence)];
    let late = ways.iter().filter_map(|(way, tried)| Some((way, tried.reached, tried.last_reached_ms?)));
    for (way, count, until) in late {
        let evidence =
            format!("{count} connections {way} a sandbox's pod got through, the last {until} ms after it began to try");
        let fix = "The network plugin enforces late; choose one that holds a pod back until its policies are in place.";
        findings.push(red(Line::Promptness, evidence, fix));
    }
    findings
}

/// In force means another kernel than the nodes': what is the same in both pods was put between nothing.
pub(super) fn runtime(class: &str, plain: Option<&str>, under: Option<&str>) -> ClusterFinding {
    let (Some(plain), Some(under)) = (plain, under) else {
        return grey(Line::RuntimeInForce, "not observed: the pods did not tell their kernels", None);
    };
    if plain == under {
        let evidence = format!("a pod under `{class}` has the kernel of one without it: {under}");
        let fix =
            "Look whether the class's handler leads to gVisor or Kata Containers in the nodes' container runtime.";
        return red(Line::RuntimeInForce, evidence, fix);
    }
    green(Line::RuntimeInForce, format!("a pod under `{class}` has a kernel of its own: {under}"))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use sandbar_api::Verdict;

    use super::*;

    fn tried(reached: u32, last_reached: bool) -> Tried {
        Tried {
            target: SocketAddr::from((Ipv4Addr::LOCALHOST, 7229)),
            attempts: 5,
            reached,
            last_reached,
            last_reached_ms: (reached > 0).then_some(u64::from(reached) * 200),
            refusal: (reached < 5).then(|| "timed out".into()),
        }
    }

    fn verdicts(allowed: &Tried, out: &Tried, into: &Tried) -> Vec<(String, Verdict)> {
        let seen = Connections { allowed: Some(allowed), out: Some(out), into: Some(into) };
        network(&seen).into_iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    #[test]
    fn only_what_was_seen_is_said() {
        let (all, none, early) = (tried(5, true), tried(0, false), tried(2, false));
        let policy = Line::NetworkPolicy.name().to_owned();
        assert_eq!(verdicts(&all, &none, &none), [(policy.clone(), Verdict::Green)]);
        assert_eq!(verdicts(&all, &all, &none), [(policy.clone(), Verdict::Red)]);
        assert_eq!(verdicts(&all, &none, &all), [(policy.clone(), Verdict::Red)]);
        assert_eq!(verdicts(&none, &none, &none), [(policy.clone(), Verdict::Grey)]);
        let late = (Line::Promptness.name().to_owned(), Verdict::Red);
        assert_eq!(verdicts(&all, &early, &none), [(policy, Verdict::Green), late]);
        let unseen = network(&Connections { allowed: Some(&all), out: None, into: Some(&none) });
        assert_eq!(unseen.first().map(|finding| finding.verdict), Some(Verdict::Grey));
    }

    #[test]
    fn a_runtime_is_in_force_when_its_kernel_is_another() {
        assert_eq!(runtime("gvisor", Some("Linux 6.1"), Some("Linux 4.4.0")).verdict, Verdict::Green);
        assert_eq!(runtime("gvisor", Some("Linux 6.1"), Some("Linux 6.1")).verdict, Verdict::Red);
        assert_eq!(runtime("gvisor", Some("Linux 6.1"), None).verdict, Verdict::Grey);
    }
}
