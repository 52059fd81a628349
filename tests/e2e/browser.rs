//! A browser as people have it, for tests of what it does by itself: cookies, origins, names.

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
};

use crate::support::Outcome;

/// A browser with a profile of its own, which ends with it.
pub(crate) struct Browser {
    process: Child,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _dead = self.process.kill().and_then(|()| self.process.wait());
    }
}

impl Browser {
    /// `None` if there is no browser.
    pub(crate) fn open(url: &str, more: &[&str]) -> Outcome<Option<Self>> {
        let profile = tempfile::tempdir()?;
        let works =
            |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|it| it.status.success());
        let Some(program) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works) else {
            return Ok(None);
        };
        let mut command = Command::new(program);
        command.args([
            "--headless",
            // Its own sandbox cannot be had by root, nor in most containers.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE *.localhost, EXCLUDE 127.0.0.1",
        ]);
        command.args(more).arg(format!("--user-data-dir={}", profile.path().display())).arg(url);
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        Ok(Some(Self { process, _profile: profile }))
    }

    /// What the page shows once nothing more happens on it.
    pub(crate) fn shown(&mut self) -> Outcome<String> {
        let mut shown = String::new();
        self.process.stdout.take().ok_or("no output")?.read_to_string(&mut shown)?;
        Ok(shown)
    }
}
