//! `kubernetes manifests`: an installation as YAML, to be read and then applied.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use sandbar_api::Verdict;
use sandbar_provider_kubernetes::{
    Settings, check,
    manifests::{Bad, BadFile, BadValues, File, Given, Values, render},
};

use crate::{
    context::Context,
    exit::{self, Failure},
    spinner,
    verbs::template,
};

/// Print what an installation on Kubernetes needs
///
/// Namespaces, rights, the server, network policies, and for each template a SandboxTemplate and a pool. Nothing secret is
/// in it: the first lines say which Secrets to make.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar kubernetes manifests | kubectl apply -f -
  sandbar kubernetes manifests --values values.toml --config gateway.toml | kubectl apply -f -
  sandbar kubernetes manifests --values values.toml --template python.toml --server-key \"$(sandbar kubernetes key)\"")]
pub(crate) struct Manifests {
    /// What is different from the defaults, TOML
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,

    /// Templates to bring along; can be repeated
    #[arg(long, value_name = "FILE")]
    template: Vec<PathBuf>,

    /// Files for the server: gateway.toml, sets.toml, workspaces.toml, certificates (*.pem, *.crt); can be repeated
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,

    /// The server's public key, as `sandbar kubernetes key` prints it; needed with --template
    #[arg(long, value_name = "KEY")]
    server_key: Vec<String>,

    /// Print nothing unless the cluster has what is needed
    #[arg(long)]
    check: bool,

    /// The cluster to check [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "check")]
    kubeconfig: Option<PathBuf>,

    /// Its context in the kubeconfig
    #[arg(long, value_name = "NAME", requires = "check")]
    context: Option<String>,
}

pub(super) async fn manifests(args: &Manifests, context: &Context) -> Result<u8, Failure> {
    let mut values = values(args.values.as_deref())?;
    if !args.server_key.is_empty() {
        values.server_keys.clone_from(&args.server_key);
    }
    let given = args.template.iter().map(|file| given(file)).collect::<Result<Vec<_>, _>>()?;
    let files = args.config.iter().map(|file| brought(file)).collect::<Result<Vec<_>, _>>()?;
    let text = render(&values, &given, &files).map_err(|bad| refused(&bad))?;
    if args.check {
        let settings = Settings {
            kubeconfig: args.kubeconfig.clone(),
            context: args.context.clone(),
            ..Settings::new("", Vec::new())
        };
        let findings = spinner::during("looking at the cluster", check::agent_sandbox(&settings)).await;
        if let Some(finding) = findings.into_iter().find(|finding| finding.verdict != Verdict::Green) {
            let failure = Failure::new(exit::FAILED, format!("{}: {}", finding.check, finding.evidence));
            return Err(match finding.fix {
                Some(fix) => failure.hint(fix),
                None => failure,
            });
        }
    }
    context.print.line(text.trim_end())?;
    Ok(exit::OK)
}

fn values(file: Option<&Path>) -> Result<Values, Failure> {
    let Some(file) = file else { return Ok(Values::default()) };
    Values::read(&read(file)?).map_err(|BadValues { line, cause }| {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        Failure::usage(format!("{}{line}: {cause}", file.display()))
    })
}

fn given(file: &Path) -> Result<Given, Failure> {
    Ok(Given { template: template::check(file)?, text: read(file)? })
}

/// By its last name, which is its name in the server's home.
fn brought(file: &Path) -> Result<File, Failure> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(File { name, text: read(file)? })
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::FAILED };
        Failure::new(code, format!("{} cannot be read: {error}", file.display()))
    })
}

fn refused(bad: &Bad) -> Failure {
    let failure = Failure::usage(exit::chain(bad));
    match bad {
        Bad::NoKey | Bad::Key(_) => failure
            .hint("Give what `sandbar kubernetes key` prints with --server-key, or as server_keys of the values."),
        Bad::NoTemplate(_) => failure.hint("Give its file with --template."),
        Bad::Template { source, .. } => match &**source {
            sandbar_provider::Error::BadSpec { fix, .. }
            | sandbar_provider::Error::BadTemplate { fix, .. }
            | sandbar_provider::Error::NotEnforceable { fix, .. } => failure.hint(fix),
            _ => failure,
        },
        Bad::File(BadFile::Configured) => failure.hint("Write what it should say into the values."),
        Bad::Elsewhere => failure.hint("Put the files into the home of that server."),
        Bad::File(_) => failure,
        Bad::Written(_) => failure.with_code(exit::FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> (u8, String) {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = place.path().join("values.toml");
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        match values(Some(&file)) {
            Err(Failure::Told { code, what, .. }) => (code, what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mistakes_name_file_and_line() {
        let (code, what) = told("\n[server]\nreplcas = 2\n");
        assert!(code == exit::USAGE && what.contains("values.toml:3: ") && what.contains("replcas"), "{what}");
        let missing = values(Some(Path::new("/nowhere/values.toml"))).err().map(|failure| failure.code());
        assert_eq!(missing, Some(exit::NOT_FOUND));
    }
}
