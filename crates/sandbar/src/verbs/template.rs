//! `template ls|show`: the recipes sandboxes are made from.

use sandbar_api::{Root, TemplateList};

use crate::{context::Context, exit, exit::Failure, spinner, table, text};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Template {
    /// List templates
    Ls,
    /// Show one template
    Show {
        /// Its name
        name: String,
    },
}

pub(crate) async fn template(verb: &Template, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    match verb {
        Template::Ls => {
            let templates = spinner::during("listing templates", client.templates()).await?;
            if print.json {
                return print.json(&TemplateList { templates }).map(|()| exit::OK);
            }
            let rows = templates.into_iter().map(|template| {
                [template.name, template.provider, root(&template.root), text::shortened(&template.description, 60)]
            });
            print.line(table::render(["NAME", "PROVIDER", "ROOT", "DESCRIPTION"], rows))?;
        }
        Template::Show { name } => {
            let template = spinner::during("looking up the template", client.template(name)).await?;
            if print.json {
                return print.json(&template).map(|()| exit::OK);
            }
            let root = root(&template.root);
            let mut fields = vec![
                ("name", template.name),
                ("description", template.description),
                ("provider", template.provider),
                ("root", root),
                ("ttl", template.ttl.map_or_else(|| "none".into(), |ttl| ttl.to_string())),
                ("output kept", text::size(template.output_retention)),
                ("largest file", text::size(template.max_file)),
            ];
            fields.extend(template.env.iter().map(|(key, value)| ("env", format!("{key}={value}"))));
            print.line(table::fields(fields))?;
        }
    }
    Ok(exit::OK)
}

fn root(root: &Root) -> String {
    match root {
        Root::Host => "host".into(),
        Root::Image { path } => format!("image {path}"),
    }
}
