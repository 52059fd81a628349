//! `template ls|show|check`: the recipes sandboxes are made from.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use sandbar_api::{Idle, Limits, Root, Runtimes, Template as Recipe, TemplateList, template};

use crate::{
    context::Context,
    exit::{self, Failure},
    spinner, table, text,
    verbs::{net, sandbox::each},
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Template {
    /// List templates
    Ls,
    /// Show one template
    Show {
        /// Its name
        name: String,
    },
    /// Check template files; needs no server
    ///
    /// A mistake is told as FILE:LINE: CAUSE, and ends with 2. Whether a host can enforce what a template asks is told
    /// when a sandbox is made from it, and by `doctor`.
    #[command(after_help = "\
Examples:
  sandbar template check python.toml
  sandbar template check /var/lib/sandbar/templates/*.toml")]
    Check {
        /// The files, named after their templates
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub(crate) async fn template(verb: &Template, context: &Context) -> Result<u8, Failure> {
    let print = context.print;
    match verb {
        Template::Ls => {
            let templates = spinner::during("listing templates", context.client()?.templates()).await?;
            if print.json {
                return print.json(&TemplateList { templates }).map(|()| exit::OK);
            }
            let rows = templates.into_iter().map(|template| {
                let (root, limits) = (root(&template.root), limits(&template.limits));
                let description = text::shortened(&template.description, 60);
                [template.name, template.provider, root, template.profile, limits, description]
            });
            print.line(table::render(["NAME", "PROVIDER", "ROOT", "PROFILE", "LIMITS", "DESCRIPTION"], rows))?;
        }
        Template::Show { name } => {
            let template = spinner::during("looking up the template", context.client()?.template(name)).await?;
            if print.json {
                return print.json(&template).map(|()| exit::OK);
            }
            let mut fields = vec![
                ("name", template.name.clone()),
                ("description", template.description.clone()),
                ("provider", template.provider.clone()),
                ("root", root(&template.root)),
            ];
            fields.extend(bounds(&template));
            fields.extend([
                ("ttl", template.ttl.map_or_else(|| "none".into(), |ttl| ttl.to_string())),
                ("output kept", text::size(template.output_retention)),
                ("largest file", text::size(template.max_file)),
            ]);
            fields.extend(template.env.iter().map(|(key, value)| ("env", format!("{key}={value}"))));
            print.line(table::fields(fields))?;
        }
        Template::Check { files } => {
            let mut first = true;
            return each(files, context, async |file| {
                let template = check(file)?;
                if print.json {
                    return print.json(&template);
                }
                let gap = if std::mem::take(&mut first) { "" } else { "\n" };
                let file = file.display().to_string();
                print.line(format!("{gap}{}: ok\n{}", text::inert(&file), table::fields(bounds(&template))))
            })
            .await;
        }
    }
    Ok(exit::OK)
}

pub(crate) fn check(file: &Path) -> Result<Recipe, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::FAILED };
        Failure::new(code, format!("{shown} cannot be read: {error}"))
    })?;
    let name = match (file.extension(), file.file_stem().and_then(|stem| stem.to_str())) {
        (Some(suffix), Some(name)) if suffix == "toml" => name,
        _ => {
            return Err(Failure::usage(format!("{shown} would not be found as a template"))
                .hint("Name the file after the template, with `.toml` at the end."));
        }
    };
    template::parse(name, &text).map_err(|bad| {
        let line = bad.line.map(|line| format!(":{line}")).unwrap_or_default();
        Failure::usage(format!("{shown}{line}: {}", bad.cause))
    })
}

fn root(root: &Root) -> String {
    match root {
        Root::Host => "host".into(),
        Root::Image { path } => format!("image {path}"),
        Root::Oci { image } => format!("image {image}"),
    }
}

/// What holds and bounds the sandboxes of a template.
fn bounds(template: &Recipe) -> Vec<(&'static str, String)> {
    let mut fields = vec![("profile", template.profile.clone())];
    let own = template.layers.iter().map(|(layer, asked)| format!("{} {}", layer.as_str(), asked.as_str()));
    if !template.layers.is_empty() {
        fields.push(("but", own.collect::<Vec<_>>().join(", ")));
    }
    fields.push(("user", template.user.as_str().to_owned()));
    fields.push(("limits", limits(&template.limits)));
    fields.push(("idle", idle(&template.idle)));
    fields.extend(template.network.rules().map(|(effect, rule)| (net::effect(effect), rule.to_owned())));
    if !template.secrets.is_empty() {
        fields.push(("secrets", template.secrets.join(", ")));
    }
    fields.extend(template.skills.clone().map(|path| ("skills", path)));
    if !template.runtimes.is_empty() {
        fields.push(("runtimes", runtimes(&template.runtimes)));
    }
    fields
}

fn limits(limits: &Limits) -> String {
    // By name, so that a new limit cannot be forgotten here.
    let Limits { memory, cpus, processes, open_files, tmpfs, disk, output, wall_time } = limits;
    stated([
        ("memory", memory.map(|size| size.to_string())),
        ("cpus", cpus.map(|cpus| cpus.to_string())),
        ("processes", processes.map(|count| count.to_string())),
        ("open files", open_files.map(|count| count.to_string())),
        ("tmpfs", tmpfs.map(|size| size.to_string())),
        ("disk", disk.map(|size| size.to_string())),
        ("output", output.map(|size| size.to_string())),
        ("wall time", wall_time.map(|time| time.to_string())),
    ])
}

fn idle(idle: &Idle) -> String {
    let Idle { pause_after, stop_after, delete_after } = idle;
    stated([
        ("pause after", pause_after.map(|time| time.to_string())),
        ("stop after", stop_after.map(|time| time.to_string())),
        ("delete after", delete_after.map(|time| time.to_string())),
    ])
}

fn runtimes(runtimes: &Runtimes) -> String {
    let Runtimes { sandboxd, legacy } = runtimes;
    stated([
        ("sandboxd", sandboxd.as_ref().map(|served| format!("gRPC {} REST {}", served.grpc_port, served.rest_port))),
        ("legacy", legacy.as_ref().map(|served| served.port.to_string())),
    ])
}

fn stated<const N: usize>(values: [(&str, Option<String>); N]) -> String {
    let stated: Vec<_> = values.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
    if stated.is_empty() { "none".into() } else { stated.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, text: &str) -> Result<Recipe, (u8, String)> {
        let place = tempfile::tempdir().map_err(|error| (0, error.to_string()))?;
        let file = place.path().join(name);
        std::fs::write(&file, text).map_err(|error| (0, error.to_string()))?;
        check(&file).map_err(|failure| {
            let Failure::Told { code, what, .. } = failure else { panic!("{failure:?}") };
            (code, what)
        })
    }

    #[test]
    fn what_is_stated_is_shown_and_nothing_else() -> Result<(), (u8, String)> {
        let text = "profile = \"hardened\"\n[limits]\nmemory = \"512MiB\"\ncpus = 1.5\n[idle]\npause_after = \"10m\"\n[layers]\nusers = \"required\"\n";
        let shown = table::fields(bounds(&checked("a.toml", text)?));
        let want = "profile: hardened\nbut:     users required\nuser:    agent\nlimits:  memory 512MiB, cpus 1.5\nidle:    pause after 10m";
        assert_eq!(shown, want);
        let served = "skills = \"/srv/skills\"\n[runtimes.sandboxd]\n[runtimes.legacy]\n";
        let want = "skills:   /srv/skills\nruntimes: sandboxd gRPC 9090 REST 8080, legacy 8888";
        let shown = table::fields(bounds(&checked("a.toml", served)?));
        assert!(shown.ends_with(want), "{shown}");
        assert_eq!(
            table::fields(bounds(&Recipe::default())),
            "profile: standard\nuser:    agent\nlimits:  none\nidle:    none"
        );
        Ok(())
    }

    #[test]
    fn the_complete_example_of_the_documentation_is_one() -> Result<(), (u8, String)> {
        let page = include_str!("../../../../docs/templates.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_default();
        let template = checked("python.toml", example)?;
        assert!(!bounds(&template).iter().any(|(_, value)| value == "none"), "{template:?}");
        assert_eq!(limits(&template.limits).split(", ").count(), 8);
        Ok(())
    }

    #[test]
    fn mistakes_name_file_and_line() {
        for (name, text, code, says) in [
            ("a.toml", "\n[limits]\nmemroy = \"1GiB\"\n", exit::USAGE, "a.toml:3: "),
            ("a.toml", "profile = \"loose\"\n", exit::USAGE, "loose"),
            ("a.tml", "", exit::USAGE, "a.tml"),
        ] {
            let told = checked(name, text).err().unwrap_or_default();
            assert!(told.0 == code && told.1.contains(says), "{name} {text}: {told:?}");
        }
        let missing = check(Path::new("/nowhere/a.toml")).err().map(|failure| failure.code());
        assert_eq!(missing, Some(exit::NOT_FOUND));
    }
}
