//! A tmux of our own in which programs run, and what they print is recorded.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use sandbar_terminal::Screen;
use tempfile::TempDir;

const COLS: u16 = 80;
pub(crate) const ROWS: u16 = 24;
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A server of our own, on a socket nobody else uses; it ends with the test.
pub(crate) struct Pane {
    place: TempDir,
}

impl Pane {
    /// A pane in which `command` begins at the first Enter, so that nothing is printed before it is recorded.
    pub(crate) fn start(command: &str) -> Self {
        let pane = Self { place: tempfile::tempdir().unwrap_or_else(|error| panic!("{error}")) };
        let config = pane.place.path().join("tmux.conf");
        let settings = "set -g status off\nset -g default-terminal xterm-256color\nset -s escape-time 0\n";
        fs::write(&config, settings).unwrap_or_else(|error| panic!("{error}"));
        let waiting = format!("stty -echo; read start; stty echo; {command}; cat > /dev/null");
        let (cols, rows) = (COLS.to_string(), ROWS.to_string());
        let config = config.to_string_lossy().into_owned();
        pane.tmux(&["-f", &config, "new-session", "-d", "-x", &cols, "-y", &rows, "sh", "-c", &waiting]);
        pane.tmux(&["pipe-pane", &format!("cat > '{}'", pane.recording().display())]);
        until("tmux records", || pane.recording().exists());
        pane.tmux(&["send-keys", "Enter"]);
        pane
    }

    pub(crate) fn recording(&self) -> PathBuf {
        self.place.path().join("recorded")
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.place.path().join("socket");
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(socket).args(arguments);
        let home = self.place.path();
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("HOME", home).env("SHELL", "/bin/sh").env("LESS", "");
        let output = command.output().unwrap_or_else(|error| panic!("tmux: {error}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Our own screen after everything that was recorded.
    pub(crate) fn screen(&self) -> Screen {
        let mut screen = Screen::new(COLS, ROWS, 100);
        screen.feed(&fs::read(self.recording()).unwrap_or_default());
        screen
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        let socket = self.place.path().join("socket");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// Whether the programs are there; what is not run is said by name.
pub(crate) fn can_run(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|program| !installed(program)).copied().collect();
    if !missing.is_empty() {
        eprintln!("not run: {test}: {} not installed", missing.join(", "));
    }
    missing.is_empty()
}
