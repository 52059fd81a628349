//! Templates: the built-in `default`, and TOML files in the home's `templates/`, read on each call so that an edit
//! takes effect at once.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use sandbar_api::{Code, Problem, Root, Template, check};

use crate::Engine;

pub(crate) const DEFAULT: &str = "default";
const SUFFIX: &str = "toml";

impl Engine {
    pub async fn templates(&self) -> Result<Vec<Template>, Problem> {
        let directory = self.inner.templates();
        let mut found = BTreeMap::from([(DEFAULT.to_owned(), Template::default())]);
        let mut entries = tokio::fs::read_dir(&directory).await.map_err(unreadable(&directory))?;
        while let Some(entry) = entries.next_entry().await.map_err(unreadable(&directory))? {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != SUFFIX) {
                continue;
            }
            let text = tokio::fs::read_to_string(&path).await.map_err(unreadable(&path))?;
            let template = parse(&path, &text)?;
            found.insert(template.name.clone(), template);
        }
        Ok(found.into_values().collect())
    }

    pub async fn template(&self, name: &str) -> Result<Template, Problem> {
        // Checked before it becomes part of a path.
        if check::name(name).is_err() {
            return Err(unknown(name));
        }
        let path = self.inner.templates().join(name).with_extension(SUFFIX);
        match tokio::fs::read_to_string(&path).await {
            Ok(text) => parse(&path, &text),
            Err(error) if error.kind() == ErrorKind::NotFound && name == DEFAULT => Ok(Template::default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(unknown(name)),
            Err(error) => Err(unreadable(&path)(error)),
        }
    }
}

fn unknown(name: &str) -> Problem {
    Problem::new(
        Code::UnknownTemplate,
        format!("There is no template `{}`.", name.escape_debug()),
        "`sandbar template ls` shows those there are; put new ones into the home's templates directory.",
    )
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Problem + use<> {
    let path: PathBuf = path.to_owned();
    move |error| {
        Problem::new(
            Code::BadTemplate,
            format!("{} cannot be read: {error}.", path.display()),
            "Make it a readable UTF-8 file of the server's user.",
        )
    }
}

fn parse(path: &Path, text: &str) -> Result<Template, Problem> {
    let bad = |line: Option<usize>, cause: &str| {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        let detail = format!("{}{line}: {}.", path.display(), cause.trim_end().trim_end_matches('.'));
        Problem::new(Code::BadTemplate, detail, "Correct the file; `sandbar template show default` shows the fields.")
    };
    let mut template: Template = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        bad(line, error.message())
    })?;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    check::name(name).map_err(|problem| bad(None, &format!("the file's name is no template's: {}", problem.fix)))?;
    if !template.name.is_empty() && template.name != name {
        return Err(bad(None, "`name` differs from the file's name; leave it out"));
    }
    name.clone_into(&mut template.name);
    check::env(&template.env).map_err(|problem| bad(None, &problem.detail))?;
    if template.ttl.is_some_and(|ttl| ttl.0.is_zero()) {
        return Err(bad(None, "`ttl` is zero; leave it out for none"));
    }
    match &template.root {
        Root::Image { path } if !Path::new(path).is_absolute() => Err(bad(None, "`root.path` is not absolute")),
        Root::Image { .. } | Root::Host => Ok(template),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Template, Problem> {
        parse(Path::new(&format!("/home/templates/{name}.toml")), text)
    }

    #[test]
    fn a_file_says_only_what_differs_from_the_default() {
        let text = "description = \"Python\"\nttl = \"1h\"\n[root]\nkind = \"image\"\npath = \"/images/python\"\n[env]\nA = \"1\"\n";
        let template = read("python", text).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(template.name, "python");
        assert_eq!(template.root, Root::Image { path: "/images/python".into() });
        assert_eq!(template.max_file, Template::default().max_file);
        assert_eq!(template.provider, "local");
    }

    #[test]
    fn mistakes_point_at_the_file_and_line() {
        let problem =
            read("a", "description = \"x\"\n\nmemroy = 5\n").map_err(|problem| (problem.code, problem.detail));
        let Err((code, detail)) = problem else { panic!("an unknown field was taken") };
        assert_eq!(code, Code::BadTemplate);
        assert!(detail.contains("a.toml:3:"), "{detail}");
        assert!(detail.contains("memroy"), "{detail}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (name, text) in [
            ("A B", ""),
            ("a", "name = \"b\""),
            ("a", "[env]\n\"1x\" = \"\""),
            ("a", "ttl = \"0s\""),
            ("a", "ttl = \"soon\""),
            ("a", "[root]\nkind = \"image\"\npath = \"relative\""),
            ("a", "[root]\nkind = \"floppy\""),
            ("a", "= 1"),
        ] {
            assert_eq!(read(name, text).map_err(|problem| problem.code), Err(Code::BadTemplate), "{name}: {text}");
        }
    }
}
