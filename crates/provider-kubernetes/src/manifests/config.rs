//! Configuration that an operator brings along for the server: files of its home, and certificates that they name.

/// Files of a home that a ConfigMap can be. Linked there before the first server starts, so that one which comes later is
/// seen too.
pub const OF_A_HOME: [&str; 4] = ["kubernetes.toml", "gateway.toml", "sets.toml", "workspaces.toml"];
/// What the values say, and no file does.
pub(super) const CONFIGURED: &str = OF_A_HOME[0];
/// Where the server finds them.
pub(super) const PLACE: &str = "/etc/sandbar/config";
/// What Kubernetes takes as a ConfigMap, with room for its other fields.
const LARGEST: usize = 1000 * 1000;

/// A file to bring along, by its last name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub name: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFile {
    #[error("`{}` is no configuration of a server: that is gateway.toml, sets.toml, workspaces.toml, and *.pem or *.crt", .0.escape_debug())]
    Unknown(String),
    #[error("`kubernetes.toml` is made from the values, not brought along")]
    Configured,
    #[error("`{0}` is given twice")]
    Twice(String),
    #[error("{name}:{line}: {cause}")]
    Syntax { name: String, line: usize, cause: String },
    #[error("`{0}` has no PEM certificate in it; a private key does not belong there")]
    NoCertificate(String),
    #[error("the files have {0} bytes together, and a ConfigMap takes {LARGEST}")]
    TooLarge(usize),
}

pub(super) fn check(files: &[File]) -> Result<(), BadFile> {
    for (at, File { name, text }) in files.iter().enumerate() {
        if name == CONFIGURED {
            return Err(BadFile::Configured);
        }
        if files.iter().take(at).any(|other| other.name == *name) {
            return Err(BadFile::Twice(name.clone()));
        }
        if OF_A_HOME.contains(&name.as_str()) {
            syntax(name, text)?;
        } else if !is_certificate(name) {
            return Err(BadFile::Unknown(name.clone()));
        } else if !text.contains("-----BEGIN CERTIFICATE-----") || text.contains("PRIVATE KEY-----") {
            return Err(BadFile::NoCertificate(name.clone()));
        }
    }
    let size = files.iter().map(|file| file.name.len() + file.text.len()).sum();
    if size > LARGEST { Err(BadFile::TooLarge(size)) } else { Ok(()) }
}

/// Only what can be told without the home: what it means is for the server to judge, which does not start with a mistake.
fn syntax(name: &str, text: &str) -> Result<(), BadFile> {
    toml::from_str::<toml::Table>(text).map(drop).map_err(|error| BadFile::Syntax {
        name: name.to_owned(),
        line: error.span().map_or(1, |span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1),
        cause: error.message().trim().trim_end_matches('.').replace('\n', ", "),
    })
}

/// As keys of a ConfigMap may be called.
fn is_certificate(name: &str) -> bool {
    let stem = name.strip_suffix(".pem").or_else(|| name.strip_suffix(".crt"));
    stem.is_some_and(|stem| {
        !stem.is_empty()
            && name.len() <= 253
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_reads_is_brought_along() {
        let file = |name: &str, text: &str| File { name: name.into(), text: text.into() };
        let certificate = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
        let good = [file("gateway.toml", "[network]\n"), file("sets.toml", ""), file("db-ca.pem", certificate)];
        assert_eq!(check(&good), Ok(()));
        let key = "-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n";
        for (files, bad) in [
            (vec![file("kubernetes.toml", "")], BadFile::Configured),
            (vec![file("secret.key", "x")], BadFile::Unknown("secret.key".into())),
            (vec![file("../a.pem", certificate)], BadFile::Unknown("../a.pem".into())),
            (vec![file(".pem", certificate)], BadFile::Unknown(".pem".into())),
            (vec![file("a.pem", key)], BadFile::NoCertificate("a.pem".into())),
            (vec![file("a.crt", "der")], BadFile::NoCertificate("a.crt".into())),
            (vec![file("sets.toml", ""), file("sets.toml", "")], BadFile::Twice("sets.toml".into())),
            (vec![file("sets.toml", &format!("a = \"{}\"", "x".repeat(LARGEST)))], BadFile::TooLarge(LARGEST + 15)),
        ] {
            assert_eq!(check(&files), Err(bad), "{}", files[0].name);
        }
        let told = check(&[file("gateway.toml", "\n[network\n")]).map_err(|bad| bad.to_string());
        assert!(told.is_err_and(|told| told.starts_with("gateway.toml:2: ")));
    }
}
