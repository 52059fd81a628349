//! Reading a template's file. Pure, so that a file can be checked without a server, and total: whatever the text, the
//! answer is a template or the line that is wrong.

use super::{BadTemplate, Template, document::Document, fields, meaning};
use crate::check;

/// Reads the text of the template `name` (its file's name without `.toml`).
pub fn parse(name: &str, text: &str) -> Result<Template, BadTemplate> {
    parse_for(name, text, &Template::default().provider)
}

/// Where a template that names no provider is one of `provider`.
pub fn parse_for(name: &str, text: &str, provider: &str) -> Result<Template, BadTemplate> {
    check::name(name).map_err(|problem| BadTemplate {
        line: None,
        cause: format!("`{}` is no template's name: {}", name.escape_debug(), problem.fix.trim_end_matches('.')),
    })?;
    let document = Document::read(text)?;
    fields::check(&document)?;
    let mut template: Template = toml::from_str(text).map_err(|error| document.misread(&error))?;
    if !template.name.is_empty() && template.name != name {
        let cause = format!("`name` is not the file's name, `{name}`: leave it out");
        return Err(document.bad(&["name"], cause));
    }
    name.clone_into(&mut template.name);
    if !document.table().contains_key("provider") {
        provider.clone_into(&mut template.provider);
    }
    meaning::check(&document, &template)?;
    Ok(template)
}
