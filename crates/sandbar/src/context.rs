//! Where things are: the home directory and the server a client verb talks to.

use std::{
    env,
    path::{Path, PathBuf},
};

use sandbar_client::Client;

use crate::{args::Global, exit::Failure, print::Printer};

const TOKEN: &str = "SANDBAR_TOKEN";
// Read here and not by the parser, which would show them in the usage of every mistake as if they had been typed.
const SERVER: &str = "SANDBAR_SERVER";
const HOME: &str = "SANDBAR_HOME";

#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub print: Printer,
    home: Option<PathBuf>,
    server: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Named {
    pub arguments: Vec<String>,
    /// If it is reached by one.
    pub url: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Tcp(String),
}

impl Context {
    pub(crate) fn new(global: &Global) -> Self {
        let given = |text: &String| !text.is_empty();
        let home = global.home.clone().or_else(|| env::var_os(HOME).map(PathBuf::from));
        let server = global.server.clone().or_else(|| Some(env::var_os(SERVER)?.to_string_lossy().into_owned()));
        Self {
            print: Printer::new(global.json, global.color),
            home: home.filter(|home| !home.as_os_str().is_empty()),
            server: server.filter(given),
        }
    }

    /// Absolute, so that a changed working directory changes nothing.
    pub(crate) fn home(&self) -> Result<PathBuf, Failure> {
        let home = match &self.home {
            Some(home) => home.clone(),
            None => default_home(rustix::process::geteuid().is_root(), |name| env::var_os(name).map(PathBuf::from))
                .ok_or_else(|| {
                    Failure::usage("there is no home directory to keep data in").hint("Set HOME, or give --home DIR.")
                })?,
        };
        std::path::absolute(&home).map_err(Failure::io(format!("`{}` cannot be the home", home.display())))
    }

    /// Whether the user named a server.
    pub(crate) fn names_server(&self) -> bool {
        self.server.is_some()
    }

    /// What another program needs, started by somebody else and elsewhere, to reach the same server.
    pub(crate) fn named(&self) -> Result<Named, Failure> {
        let flag = |name: &str, value: &Path| vec![name.to_owned(), value.display().to_string()];
        match self.server.as_deref().map(address) {
            Some(Address::Tcp(url)) => Ok(Named { arguments: vec!["--server".into(), url.clone()], url: Some(url) }),
            Some(Address::Unix(socket)) => {
                let socket = std::path::absolute(&socket)
                    .map_err(Failure::io(format!("`{}` cannot be a socket", socket.display())))?;
                Ok(Named { arguments: flag("--server", &socket), url: None })
            }
            None if self.home.is_some() => Ok(Named { arguments: flag("--home", &self.home()?), url: None }),
            None => Ok(Named::default()),
        }
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let address = match &self.server {
            Some(text) => address(text),
            None => Address::Unix(socket(&self.home()?)),
        };
        let client = match address {
            Address::Unix(socket) => Client::unix(socket)?,
            Address::Tcp(url) => Client::tcp(&url, env::var(TOKEN).ok().as_deref())?,
        };
        let print = self.print;
        // Carriage returns, because the terminal may be raw.
        Ok(client.on_away(move || print.say("\rwaiting for the server…\r")))
    }
}

pub(crate) fn socket(home: &Path) -> PathBuf {
    home.join("sandbar.sock")
}

fn address(text: &str) -> Address {
    match text.strip_prefix("unix:") {
        // Both `unix:/path` and the URL form `unix:///path`.
        Some(path) => Address::Unix(path.strip_prefix("//").unwrap_or(path).into()),
        None if text.contains("://") => Address::Tcp(text.to_owned()),
        None if text.contains('/') || Path::new(text).exists() => Address::Unix(text.into()),
        // Refused by the client with the forms that are understood.
        None => Address::Tcp(text.to_owned()),
    }
}

fn default_home(root: bool, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some("/var/lib/sandbar".into());
    }
    // The XDG specification: relative values are to be ignored.
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("sandbar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        for (text, socket) in [("/x.sock", "/x.sock"), ("./x", "./x"), ("unix:/a", "/a"), ("unix:///a", "/a")] {
            assert_eq!(address(text), Address::Unix(socket.into()));
        }
        assert_eq!(address("https://h:1"), Address::Tcp("https://h:1".into()));
        assert_eq!(address("h:1"), Address::Tcp("h:1".into()));
    }

    #[test]
    fn the_home_follows_user_and_environment() {
        let variables = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        };
        let home = |root, pairs| default_home(root, variables(pairs)).map(|home| home.display().to_string());
        assert_eq!(home(true, &[("HOME", "/root")]).as_deref(), Some("/var/lib/sandbar"));
        assert_eq!(home(false, &[("HOME", "/h")]).as_deref(), Some("/h/.local/state/sandbar"));
        assert_eq!(home(false, &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]).as_deref(), Some("/s/sandbar"));
        assert_eq!(home(false, &[("HOME", "/h"), ("XDG_STATE_HOME", "s")]).as_deref(), Some("/h/.local/state/sandbar"));
        assert_eq!(home(false, &[]), None);
    }
}
