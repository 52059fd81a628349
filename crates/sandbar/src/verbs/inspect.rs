//! `inspect`: everything about a sandbox, and what holds it, as a probe inside saw it.

use sandbar_api::{Code, Enforcement, LayerReport, Requirement, Sandbox, SandboxState, WorkspaceSource};
use sandbar_client::Client;
use serde::Serialize;

use crate::{
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    spinner, table,
    text::inert,
    verbs::sandbox::{Sandboxes, each},
};

/// Show everything about sandboxes, and what holds them
///
/// The report comes from a probe that runs inside the sandbox while you wait: for each layer what was asked, what is in
/// force, and what the probe saw. Ends with 7 if a layer that is required is not in force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar inspect agent
  sandbar --json inspect agent | jq '.enforcement.layers[] | select(.in_force | not)'")]
pub(crate) struct Inspect {
    #[command(flatten)]
    which: Sandboxes,
}

#[derive(Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    sandbox: &'a Sandbox,
    /// `null` while it does not run.
    enforcement: Option<&'a Enforcement>,
}

pub(crate) async fn inspect(args: &Inspect, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let (mut first, mut holds) = (true, true);
    let code = each(&args.which.sandboxes, context, async |name| {
        let sandbox = client.sandbox(name).await?;
        let report = match spinner::during("probing", probe(&client, &sandbox)).await {
            // What is known is shown, whatever the probe met.
            Err(failure) if !print.json => {
                print.line(format!("{}{}", gap(&mut first), described(&sandbox)))?;
                return Err(failure);
            }
            report => report?,
        };
        holds &= report.as_ref().is_none_or(Enforcement::holds);
        if print.json {
            return print.json(&Inspected { sandbox: &sandbox, enforcement: report.as_ref() });
        }
        print.line(format!("{}{}", gap(&mut first), described(&sandbox)))?;
        match &report {
            Some(report) => print.line(format!("\n{}", reported(report, print))),
            None => print.line(format!("\n{}", needs_to_run(&sandbox))),
        }
    })
    .await?;
    Ok(if code == exit::OK && !holds { exit::NOT_ENFORCEABLE } else { code })
}

fn gap(first: &mut bool) -> &'static str {
    if std::mem::take(first) { "" } else { "\n" }
}

/// Of a paused sandbox, which is not woken, the server remembers what it saw last.
async fn probe(client: &Client, sandbox: &Sandbox) -> Result<Option<Enforcement>, Failure> {
    if !matches!(sandbox.state, SandboxState::Ready | SandboxState::Paused) {
        return Ok(None);
    }
    match client.enforcement(sandbox.id.as_str()).await {
        Err(error) if error.code() == Some(Code::WrongState) => Ok(None),
        report => Ok(Some(report?)),
    }
}

fn needs_to_run(sandbox: &Sandbox) -> String {
    let name = inert(&sandbox.name);
    let how = match sandbox.state {
        SandboxState::Paused => format!(": `sandbar resume {name}`"),
        SandboxState::Stopped | SandboxState::Failed => format!(": `sandbar start {name}`"),
        _ => String::new(),
    };
    format!("what is in force is seen by a probe inside, for which it has to run{how}")
}

fn described(sandbox: &Sandbox) -> String {
    let mut fields = vec![
        ("name", sandbox.name.clone()),
        ("id", sandbox.id.to_string()),
        ("session", sandbox.session.to_string()),
        ("state", sandbox.state.as_str().to_owned()),
    ];
    if let Some(reason) = &sandbox.reason {
        fields.push(("reason", format!("{}: {}", reason.code, reason.detail)));
    }
    fields.extend([
        ("template", sandbox.template.clone()),
        ("provider", sandbox.provider.clone()),
        (
            "workspace",
            match &sandbox.workspace {
                WorkspaceSource::Empty => "its own".into(),
                WorkspaceSource::Bind { path } => format!("{path} of the host, read-write"),
            },
        ),
        ("created", sandbox.created_at.to_rfc3339()),
        ("changed", sandbox.changed_at.to_rfc3339()),
        ("expires", sandbox.expires_at.map_or_else(|| "never".into(), |at| at.to_rfc3339())),
    ]);
    if let Some(snapshot) = &sandbox.from {
        fields.push(("from", format!("snapshot {snapshot}")));
    }
    fields.extend(sandbox.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    fields.extend(sandbox.env.iter().map(|(key, value)| ("env", format!("{key}={value}"))));
    table::fields(fields)
}

fn reported(report: &Enforcement, print: Printer) -> String {
    let mut lines = vec![table::fields([
        ("profile", report.profile.clone()),
        ("user", report.user.clone()),
        ("probed", report.probed_at.to_rfc3339()),
    ])];
    let missing = report.layers.iter().filter(|layer| in_force(layer) == "no");
    lines.extend(missing.map(|layer| problem(layer, print)));
    let rows = report.layers.iter().map(|layer| {
        [
            layer.layer.title().to_owned(),
            layer.requirement.as_str().to_owned(),
            in_force(layer).to_owned(),
            layer.evidence.clone(),
        ]
    });
    lines.push(format!("\n{}", table::render(["LAYER", "ASKED", "IN FORCE", "EVIDENCE"], rows)));
    let (verdict, style) = match report.holds() {
        true => ("everything that is required is in force", Style::Green),
        false => ("something that is required is not in force", Style::Red),
    };
    lines.push(format!("\n{}", print.mark(verdict, style)));
    lines.join("\n")
}

fn in_force(layer: &LayerReport) -> &'static str {
    match (layer.in_force, layer.requirement) {
        (true, _) => "yes",
        (false, Requirement::Off) => "off",
        (false, Requirement::Required | Requirement::Optional) => "no",
    }
}

fn problem(layer: &LayerReport, print: Printer) -> String {
    let style = if layer.requirement == Requirement::Required { Style::Red } else { Style::Yellow };
    let (sign, title, asked) = (print.mark("✗", style), layer.layer.title(), layer.requirement.as_str());
    let fix = layer.fix.as_ref().map(|fix| format!("\n    fix: {}", inert(fix))).unwrap_or_default();
    format!("\n{sign} {title} is not in force ({asked}): {}{fix}", inert(&layer.evidence))
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use sandbar_api::{Layer, SandboxId};

    use super::*;
    use crate::args::Color;

    fn layer(layer: Layer, requirement: Requirement, in_force: bool) -> LayerReport {
        LayerReport { layer, requirement, in_force, evidence: "seen\u{1b}".into(), fix: Some("do".into()) }
    }

    fn report(layers: Vec<LayerReport>) -> Enforcement {
        let (profile, user) = ("standard".into(), "agent".into());
        Enforcement { sandbox: SandboxId::from_parts(0, [0; 10]), profile, user, probed_at: Utc::now(), layers }
    }

    #[test]
    fn problems_come_first_with_their_fix_and_nothing_off_is_one() {
        let print = Printer::new(false, Color::Never);
        let text = reported(
            &report(vec![
                layer(Layer::Mounts, Requirement::Required, true),
                layer(Layer::Users, Requirement::Optional, false),
                layer(Layer::Memory, Requirement::Off, false),
            ]),
            print,
        );
        let found = |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        let fix = found(&text, "✗ uid separation is not in force (optional): seen\\x1b\n    fix: do");
        assert!(fix < found(&text, "LAYER "));
        assert_eq!(text.matches('✗').count(), 1, "{text}");
        assert!(text.ends_with("everything that is required is in force"), "{text}");
        for line in ["uid separation  optional  no        seen", "memory limit    off       off       seen"] {
            found(&text, line);
        }
        let broken = reported(&report(vec![layer(Layer::Seccomp, Requirement::Required, false)]), print);
        assert!(broken.ends_with("something that is required is not in force"), "{broken}");
    }
}
