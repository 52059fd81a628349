//! `doctor`: what this host can enforce, tried for real.

use sandbar_provider::{HostReport, Provider as _};

use crate::{
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    private, spinner,
    text::inert,
    up,
};

/// Say what this host can enforce, and how to fix the rest
///
/// Every layer is tried, not looked up. Needs no server; with --server it asks that server about its host.
/// Ends with 1 when sandboxes cannot be made.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

pub(crate) async fn doctor(context: &Context) -> Result<u8, Failure> {
    let reports = match spinner::during("trying what this host can enforce", reports(context)).await {
        Err(failure) if failure.code() == exit::NOT_ENFORCEABLE => return Err(failure.with_code(exit::FAILED)),
        reports => reports?,
    };
    let print = context.print;
    for report in &reports {
        if print.json {
            print.json(report)?;
        } else {
            show(report, print)?;
        }
    }
    let usable = reports.iter().any(HostReport::usable);
    if !print.json {
        let (verdict, style) = match usable {
            true => ("sandboxes can be made here", Style::Green),
            false => ("sandboxes cannot be made here", Style::Red),
        };
        print.line(format!("\n{}", print.mark(verdict, style)))?;
    }
    Ok(if usable { exit::OK } else { exit::FAILED })
}

async fn reports(context: &Context) -> Result<Vec<HostReport>, Failure> {
    if context.names_server() {
        let client = context.client()?;
        let reports = client.host().await?;
        return reports
            .into_iter()
            .map(serde_json::from_value)
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::new(exit::FAILED, format!("the server's report cannot be read: {error}")));
    }
    // A home of its own, so that a running server is not disturbed.
    let (local, _home) = private::local().await?;
    let report = local.probe().await;
    local.close().await.map_err(|error| up::provider_failure(&error))?;
    Ok(vec![report])
}

fn show(report: &HostReport, print: Printer) -> Result<(), Failure> {
    print.line(format!("provider {}", print.mark(&inert(&report.provider), Style::Bold)))?;
    for finding in &report.findings {
        let (sign, style) = match (finding.works, finding.required) {
            (true, _) => ("✓", Style::Green),
            (false, true) => ("✗", Style::Red),
            (false, false) => ("✗", Style::Yellow),
        };
        let optional = if finding.works || finding.required { "" } else { " (not required)" };
        let (layer, evidence) = (inert(&finding.layer), inert(&finding.evidence));
        print.line(format!("  {} {layer}{optional}: {evidence}", print.mark(sign, style)))?;
        if let (false, Some(fix)) = (finding.works, &finding.fix) {
            print.line(format!("    fix: {}", inert(fix)))?;
        }
    }
    Ok(())
}
