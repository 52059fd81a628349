//! What a Start request asks to run, checked and in the form that execve takes. Pure.

use std::{collections::BTreeMap, ffi::CString};

use crate::{
    error::{Code, Fault},
    protocol::{StartRequest, TerminalSize},
};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The user that workloads run as.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    pub(crate) home: String,
    /// Of every process, unless its request says otherwise.
    pub(crate) env: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) struct Command {
    /// Where the program may be, in the order they are tried.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
}

impl Command {
    pub(crate) fn parse(request: &StartRequest, user: &User) -> Result<Self, Fault> {
        let program = request.argv.first().filter(|program| !program.is_empty());
        let Some(program) = program else {
            return Err(Fault::new(Code::BadCommand, "There is no command to run."));
        };
        if !request.cwd.starts_with('/') {
            return Err(Fault::new(Code::BadPath, format!("The directory `{}` is not absolute.", request.cwd)));
        }
        let env = environment(request, user);
        let path = env.get("PATH").map_or(DEFAULT_PATH, |path| path);
        let string = |text: String, code, what: &str| {
            CString::new(text).map_err(|_| Fault::new(code, format!("{what} contains a NUL byte.")))
        };
        let candidates = places(program, path);
        Ok(Self {
            candidates: candidates
                .into_iter()
                .map(|place| string(place, Code::BadCommand, "The command"))
                .collect::<Result<_, _>>()?,
            argv: request
                .argv
                .iter()
                .map(|argument| string(argument.clone(), Code::BadCommand, "An argument"))
                .collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(name, value)| {
                    if name.is_empty() || name.contains('=') {
                        return Err(Fault::new(Code::BadEnv, format!("`{name}` cannot be an environment variable.")));
                    }
                    string(format!("{name}={value}"), Code::BadEnv, "An environment variable")
                })
                .collect::<Result<_, _>>()?,
            cwd: string(request.cwd.clone(), Code::BadPath, "The directory")?,
        })
    }
}

fn environment<'a>(request: &'a StartRequest, user: &'a User) -> BTreeMap<&'a str, &'a str> {
    let mut env = BTreeMap::from([
        ("PATH", DEFAULT_PATH),
        ("HOME", user.home.as_str()),
        ("USER", user.name.as_str()),
        ("LOGNAME", user.name.as_str()),
        ("LANG", "C.UTF-8"),
        ("SHELL", "/bin/sh"),
    ]);
    if request.terminal.is_some() {
        env.insert("TERM", "xterm-256color");
    }
    env.extend(user.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env.extend(request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env
}

/// A name with a slash is a path; others are looked up, where an empty part of PATH means the current directory.
fn places(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .map(|directory| if directory.is_empty() { format!("./{program}") } else { format!("{directory}/{program}") })
        .collect()
}

/// A size that a terminal can have, as the kernel takes it.
pub(crate) fn terminal_size(size: &TerminalSize) -> Result<rustix::termios::Winsize, Fault> {
    let side = |cells: u32| u16::try_from(cells).ok().filter(|cells| (1..=9999).contains(cells));
    match (side(size.cols), side(size.rows)) {
        (Some(ws_col), Some(ws_row)) => Ok(rustix::termios::Winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 }),
        _ => Err(Fault::new(Code::BadRequest, format!("A terminal cannot be {} by {}.", size.cols, size.rows))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            uid: 1,
            gid: 1,
            name: "agent".into(),
            home: "/home/agent".into(),
            env: BTreeMap::from([("B".into(), "own".into())]),
        }
    }

    fn request(argv: &[&str], env: &[(&str, &str)]) -> StartRequest {
        StartRequest {
            argv: argv.iter().map(|&text| text.into()).collect(),
            env: env.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
            cwd: "/".into(),
            ..StartRequest::default()
        }
    }

    fn strings(list: &[CString]) -> Vec<String> {
        list.iter().map(|text| text.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_is_absent_is_added_and_what_is_given_stays() -> Result<(), Fault> {
        let command = Command::parse(&request(&["x"], &[("HOME", "/h"), ("A", "1")]), &user())?;
        let env = strings(&command.env);
        for line in ["HOME=/h", "A=1", "B=own", "USER=agent", "LOGNAME=agent", "LANG=C.UTF-8", "SHELL=/bin/sh"] {
            assert!(env.contains(&line.to_owned()), "{line} in {env:?}");
        }
        assert!(!env.iter().any(|line| line.starts_with("TERM=")));
        let terminal = Some(TerminalSize { cols: 80, rows: 24 });
        let command = Command::parse(&StartRequest { terminal, ..request(&["x"], &[]) }, &user())?;
        assert!(strings(&command.env).contains(&"TERM=xterm-256color".to_owned()));
        Ok(())
    }

    #[test]
    fn lookup_follows_the_requests_path() -> Result<(), Fault> {
        let command = Command::parse(&request(&["x"], &[("PATH", "/a::/b")]), &user())?;
        assert_eq!(strings(&command.candidates), ["/a/x", "./x", "/b/x"]);
        let command = Command::parse(&request(&["./x"], &[]), &user())?;
        assert_eq!(strings(&command.candidates), ["./x"]);
        Ok(())
    }

    #[test]
    fn what_no_process_can_be_started_with_is_refused() {
        let code = |request: StartRequest| Command::parse(&request, &user()).map(|_| ()).map_err(|fault| fault.code);
        assert_eq!(code(request(&[], &[])), Err(Code::BadCommand));
        assert_eq!(code(request(&[""], &[])), Err(Code::BadCommand));
        assert_eq!(code(request(&["a\0b"], &[])), Err(Code::BadCommand));
        assert_eq!(code(request(&["x"], &[("A", "\0")])), Err(Code::BadEnv));
        assert_eq!(code(request(&["x"], &[("A=B", "")])), Err(Code::BadEnv));
        assert_eq!(code(StartRequest { cwd: "x".into(), ..request(&["x"], &[]) }), Err(Code::BadPath));
        assert!(terminal_size(&TerminalSize { cols: 0, rows: 1 }).is_err());
        assert!(terminal_size(&TerminalSize { cols: 80, rows: 70_000 }).is_err());
    }
}
