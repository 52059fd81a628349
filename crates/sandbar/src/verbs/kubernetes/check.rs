//! `kubernetes check`: whether a cluster can hold sandboxes, and what runs in the pods that show it.

use std::path::PathBuf;

use sandbar_api::{ClusterCheck, ClusterReport, Verdict};
use sandbar_provider_kubernetes::{Settings, check as cluster};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    spinner,
    text::inert,
    up,
};

/// Say whether a cluster can hold sandboxes, and how to fix the rest
///
/// What looking does not show is tried with four small pods, which are removed afterwards. Needs no server; with --server
/// it asks that server about its cluster. Ends with 1 when something that sandboxes need is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar kubernetes check
  sandbar kubernetes check --context staging --runtime-class gvisor
  sandbar kubernetes check --look-only --json")]
pub(crate) struct Check {
    /// The namespace of the sandboxes
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// Of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Which cluster [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The image that brings the guest into each pod
    #[arg(long, value_name = "IMAGE")]
    guest_image: Option<String>,

    /// A RuntimeClass that has to be there and in force
    #[arg(long, value_name = "NAME")]
    runtime_class: Option<String>,

    /// A StorageClass that has to be there [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,

    /// Make nothing in the cluster
    #[arg(long)]
    look_only: bool,
}

pub(super) async fn check(args: Check, context: &Context) -> Result<u8, Failure> {
    let Check { namespace, context: named, kubeconfig, guest_image, runtime_class, storage_class, look_only } = args;
    let asked = ClusterCheck { look_only, runtime_class, storage_class };
    let report = if context.names_server() {
        if namespace.is_some() || named.is_some() || kubeconfig.is_some() || guest_image.is_some() {
            return Err(Failure::usage("which cluster it is, and where in it sandboxes are, the server knows")
                .hint("Leave out --namespace, --context, --kubeconfig and --guest-image, or --server."));
        }
        let client = context.client()?;
        spinner::during("the server looks at its cluster", client.kubernetes_check(&asked)).await?
    } else {
        let mut settings = Settings::new("", Vec::new());
        // Whoever has no home has said nothing there either.
        if let Ok(home) = context.home() {
            up::kubernetes::configure(&mut settings, &home, None)?;
        }
        settings.namespace = namespace.unwrap_or(settings.namespace);
        settings.context = named.or(settings.context);
        settings.kubeconfig = kubeconfig.or(settings.kubeconfig);
        settings.guest_image = guest_image.unwrap_or(settings.guest_image);
        looked(&settings, &asked).await?
    };
    let print = context.print;
    if print.json {
        print.json(&report)?;
    } else {
        show(&report, print)?;
    }
    Ok(if report.usable() { exit::OK } else { exit::FAILED })
}

/// An interrupt ends it after what was made is removed; the second one at once.
async fn looked(settings: &Settings, asked: &ClusterCheck) -> Result<ClusterReport, Failure> {
    let listen = |kind| signal(kind).map_err(Failure::io("failed to listen for signals"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let cancelled = CancellationToken::new();
    let work = spinner::during("looking at the cluster", cluster::run(settings, asked, &cancelled));
    let mut work = std::pin::pin!(work);
    let mut code = None;
    loop {
        let signalled = tokio::select! {
            report = &mut work => return match code {
                Some(code) => Err(Failure::Quiet(code)),
                None => Ok(report),
            },
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        };
        if code.replace(signalled).is_some() {
            return Err(Failure::Quiet(signalled));
        }
        cancelled.cancel();
    }
}

fn show(report: &ClusterReport, print: Printer) -> Result<(), Failure> {
    print.line(format!("namespace {}", print.mark(&inert(&report.namespace), Style::Bold)))?;
    for finding in &report.findings {
        let sign = match (finding.verdict, finding.required) {
            (Verdict::Green, _) => print.mark("✓", Style::Green),
            (Verdict::Red, true) => print.mark("✗", Style::Red),
            (Verdict::Red, false) => print.mark("✗", Style::Yellow),
            (Verdict::Grey, _) => "–".to_owned(),
        };
        let optional = if finding.verdict == Verdict::Red && !finding.required { " (not required)" } else { "" };
        print.line(format!("  {sign} {}{optional}: {}", inert(&finding.check), inert(&finding.evidence)))?;
        if let (Verdict::Red | Verdict::Grey, Some(fix)) = (finding.verdict, &finding.fix) {
            print.line(format!("    fix: {}", inert(fix)))?;
        }
    }
    let unseen = report.findings.iter().any(|finding| finding.required && finding.verdict == Verdict::Grey);
    let (verdict, style) = match (report.usable(), unseen) {
        (false, _) => ("this cluster cannot hold sandboxes", Style::Red),
        (true, true) => ("nothing speaks against this cluster, but not everything was seen", Style::Yellow),
        (true, false) => ("this cluster can hold sandboxes", Style::Green),
    };
    print.line(format!("\n{}", print.mark(verdict, style)))
}

/// In a pod: the addresses come with the claim, after the pod's own template was made.
pub(super) async fn probe(context: &Context) -> Result<u8, Failure> {
    let targets = std::env::var(cluster::reach::TARGETS).unwrap_or_default();
    let print = context.print;
    // A closed standard output is noticed by whoever reads it.
    let telling = cluster::reach::main(&targets, |line| drop(print.line(line)));
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::io("failed to listen for signals"))?;
    tokio::select! {
        ended = telling => ended.map_err(Failure::io("the probe failed"))?,
        _ = terminate.recv() => {}
    }
    Ok(exit::OK)
}
