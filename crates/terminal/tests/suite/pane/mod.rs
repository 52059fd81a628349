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
const ROWS: u16 = 24;
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A server of our own, on a socket nobody else uses; it ends with the test.
pub(crate) struct Pane {
    place: TempDir,
}

impl Pane {
    /// A pane in which `command` begins at the first Enter, so that nothing is printed before it is recorded.
    pub(crate) fn start(command: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap_or_else(|error| panic!("{error}")), command)
    }

    fn start_in(place: TempDir, command: &str) -> Self {
        let pane = Self { place };
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

    /// A script for bash.
    pub(crate) fn play(script: &str) -> Self {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = place.path().join("script");
        fs::write(&file, script).unwrap_or_else(|error| panic!("{error}"));
        Self::start_in(place, &format!("bash '{}'", file.display()))
    }

    /// Types what a choice says, byte by byte.
    pub(crate) fn press(&self, keys: &str) {
        let codes: Vec<String> = keys.bytes().map(|byte| format!("{byte:02x}")).collect();
        let arguments: Vec<&str> = ["send-keys", "-H"].into_iter().chain(codes.iter().map(String::as_str)).collect();
        self.tmux(&arguments);
    }

    pub(crate) fn recording(&self) -> PathBuf {
        self.place.path().join("recorded")
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.place.path().join("socket");
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(socket).args(arguments);
        let home = self.place.path();
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("HOME", home).env("TMPDIR", home);
        command.env("SHELL", "/bin/sh").env("LESS", "");
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

/// What tmux shows: rows, cursor, alternate screen.
fn judged(pane: &Pane) -> (Vec<String>, String) {
    let text = pane.tmux(&["capture-pane", "-p"]);
    let mut rows: Vec<String> = text.lines().map(|row| row.trim_end().to_owned()).collect();
    rows.resize(usize::from(ROWS), String::new());
    (rows, pane.tmux(&["display-message", "-p", "#{cursor_y},#{cursor_x},#{alternate_on}"]).trim().to_owned())
}

fn ours(pane: &Pane) -> (Vec<String>, String) {
    let screen = pane.screen();
    let (row, col) = screen.cursor();
    (screen.lines(), format!("{row},{col},{}", u8::from(screen.alternate_screen())))
}

/// Output may still be on its way to the recording or to tmux, so both are given a moment to agree on `sign`.
pub(crate) fn agree(pane: &Pane, sign: &str) {
    let begun = Instant::now();
    loop {
        let (judged, ours) = (judged(pane), ours(pane));
        let shown = judged.0.iter().any(|row| row.contains(sign));
        if shown && judged == ours {
            return;
        }
        if begun.elapsed() > PATIENCE {
            assert!(shown, "{sign:?} was never shown:\n{}", judged.0.join("\n"));
            assert_eq!(ours.0.join("\n"), judged.0.join("\n"), "waiting for {sign:?}");
            assert_eq!(ours.1, judged.1, "cursor and alternate screen");
        }
        thread::sleep(Duration::from_millis(50));
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
        || ["/usr/sbin", "/sbin"].iter().any(|folder| PathBuf::from(folder).join(program).exists())
}

/// Whether the programs are there; what is not run is said by name.
pub(crate) fn can_run(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|program| !installed(program)).copied().collect();
    if !missing.is_empty() {
        sandbar_test_harness::missing(test, &missing.join(", "));
    }
    missing.is_empty()
}
