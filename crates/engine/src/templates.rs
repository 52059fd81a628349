//! Templates: the built-in `default`, and TOML files in the home's `templates/`, read on each call so that an edit
//! takes effect at once.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use sandbar_api::{Code, Problem, Template, check, template};

use crate::{Engine, Inner};

pub(crate) const DEFAULT: &str = "default";
const SUFFIX: &str = "toml";

impl Engine {
    pub async fn templates(&self) -> Result<Vec<Template>, Problem> {
        let directory = self.inner.templates();
        let mut found = BTreeMap::from([(DEFAULT.to_owned(), self.inner.built_in())]);
        let mut entries = tokio::fs::read_dir(&directory).await.map_err(unreadable(&directory))?;
        while let Some(entry) = entries.next_entry().await.map_err(unreadable(&directory))? {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != SUFFIX) {
                continue;
            }
            let text = tokio::fs::read_to_string(&path).await.map_err(unreadable(&path))?;
            let template = parse(&path, &text, self.inner.usual)?;
            found.insert(template.name.clone(), template);
        }
        Ok(found.into_values().collect())
    }

    pub async fn template(&self, name: &str) -> Result<Template, Problem> {
        self.inner.template(name).await
    }
}

impl Inner {
    /// On a cluster there is no host whose programs it could have.
    fn built_in(&self) -> Template {
        let template = Template::default();
        if self.usual == template.provider {
            return template;
        }
        let description = "The provider's usual image, an empty workspace, no network.".into();
        Template { provider: self.usual.into(), description, ..template }
    }

    pub(crate) async fn template(&self, name: &str) -> Result<Template, Problem> {
        // Checked before it becomes part of a path.
        if check::name(name).is_err() {
            return Err(unknown(name));
        }
        let path = self.templates().join(name).with_extension(SUFFIX);
        // On this thread: a small file takes a few microseconds, and handing it to another thread and back many more.
        match std::fs::read_to_string(&path) {
            Ok(text) => parse(&path, &text, self.usual),
            Err(error) if error.kind() == ErrorKind::NotFound && name == DEFAULT => Ok(self.built_in()),
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

/// One that names no provider is of the usual one.
fn parse(path: &Path, text: &str, usual: &str) -> Result<Template, Problem> {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    template::parse_for(name, text, usual).map_err(|bad| {
        let line = bad.line.map(|line| format!(":{line}")).unwrap_or_default();
        Problem::new(
            Code::BadTemplate,
            format!("{}{line}: {}.", path.display(), bad.cause),
            "Correct the file; `sandbar template check FILE` says when it is right.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_point_at_the_file_and_line() {
        let text = "description = \"x\"\n\n[limits]\nmemroy = 5\n";
        let problem = parse(Path::new("/home/templates/a.toml"), text, "local").err();
        let Some(problem) = problem else { panic!("an unknown field was taken") };
        assert_eq!(problem.code, Code::BadTemplate);
        assert!(problem.detail.starts_with("/home/templates/a.toml:4: "), "{}", problem.detail);
        assert!(problem.detail.contains("did you mean `memory`?"), "{}", problem.detail);
        let misnamed = parse(Path::new("/home/templates/A B.toml"), "", "local").map_err(|problem| problem.code);
        assert_eq!(misnamed, Err(Code::BadTemplate));
    }

    #[test]
    fn what_names_no_provider_is_of_the_usual_one() {
        let provider = |text: &str| parse(Path::new("a.toml"), text, "kubernetes").map(|template| template.provider);
        assert_eq!(provider(""), Ok("kubernetes".into()));
        assert_eq!(provider("provider = \"local\""), Ok("local".into()));
    }
}
