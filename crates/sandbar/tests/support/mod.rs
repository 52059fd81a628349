//! A real server in a home of its own, for the end-to-end tests, and a look at what it leaves on the host.
#![expect(dead_code, reason = "each test program uses its part")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbar_client::{Client, Patience};

pub(crate) const SANDBAR: &str = env!("CARGO_BIN_EXE_sandbar");

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) enum Home {
    Ours(tempfile::TempDir),
    Theirs(PathBuf),
}

impl Home {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Ours(home) => home.path(),
            Self::Theirs(home) => home,
        }
    }
}

/// `sandbar up` on a temporary home; killed and cleaned up when dropped.
pub(crate) struct Server {
    pub(crate) home: Home,
    process: Option<Child>,
    /// What it printed on standard output.
    pub(crate) printed: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Outcome<Self> {
        Self::with(Home::Ours(tempfile::tempdir()?))
    }

    /// In a home that somebody else removes.
    pub(crate) fn start_in(home: PathBuf) -> Outcome<Self> {
        fs::create_dir(&home)?;
        Self::with(Home::Theirs(home))
    }

    fn with(home: Home) -> Outcome<Self> {
        let mut server = Self { home, process: None, printed: vec![] };
        server.restart()?;
        Ok(server)
    }

    /// Starts it, again if it was killed, and returns when it answers.
    pub(crate) fn restart(&mut self) -> Outcome {
        let mut command = Command::new(SANDBAR);
        command.args(["up", "--listen", "127.0.0.1:0"]).env("SANDBAR_HOME", self.home.path());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::from(self.log()?)).spawn()?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        self.process = Some(process);
        self.printed.clear();
        // The link is the last line, printed when the server answers.
        for line in BufReader::new(stdout).lines() {
            self.printed.push(line?);
            if self.link().is_some() {
                return Ok(());
            }
        }
        Err(format!("the server ended: {}", fs::read_to_string(self.home.path().join("log"))?).into())
    }

    fn log(&self) -> Outcome<fs::File> {
        Ok(fs::File::options().create(true).append(true).open(self.home.path().join("log"))?)
    }

    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn link(&self) -> Option<&str> {
        self.printed.iter().flat_map(|line| line.split_whitespace()).find(|word| word.contains("/#code="))
    }

    pub(crate) fn base(&self) -> Outcome<String> {
        Ok(self.link().and_then(|link| link.split("/#").next()).ok_or("no link")?.to_owned())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.home.path().join("sandbar.sock")
    }

    pub(crate) fn client(&self) -> Outcome<Client> {
        Ok(Client::unix(self.socket())?)
    }

    /// A client that takes the first failure for the answer.
    pub(crate) fn impatient(&self) -> Outcome<Client> {
        Ok(self.client()?.with_patience(Patience::NONE))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// SIGKILL, as the kernel's OOM killer or a power button would.
    pub(crate) fn kill(&mut self) -> Outcome {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SANDBAR);
        command.args(arguments).env("SANDBAR_HOME", self.home.path());
        command
    }

    /// Resident memory of the server, in KiB.
    pub(crate) fn resident(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log_text());
        }
        let _killed = self.kill();
        // What a failed test left running would outlive it.
        for pid in guests(self.home.path()) {
            let _gone = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

/// The guests whose pid files are below a home.
pub(crate) fn guests(home: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(home.join("local")) else { return vec![] };
    entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("guest.pid")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse().ok())
        .collect()
}

/// What sandboxes whose files were below `place` have left on this host: processes (known by what they have mounted),
/// mounts and registered uids. Other tests' sandboxes do not count.
fn leftovers(place: &Path) -> Outcome<Vec<String>> {
    let name = place.file_name().ok_or("the root is not a place")?.to_string_lossy().into_owned();
    let mut left = vec![];
    for entry in fs::read_dir("/proc")?.flatten() {
        // What ended meanwhile has nothing mounted.
        let mounts = fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        if mounts.contains(&name) {
            left.push(format!("process {}", entry.file_name().to_string_lossy()));
        }
    }
    for slot in fs::read_dir("/run/sandbar/uids").into_iter().flatten().flatten() {
        if fs::read_link(slot.path()).is_ok_and(|owner| owner.to_string_lossy().contains(&name)) {
            left.push(format!("uids {}", slot.file_name().to_string_lossy()));
        }
    }
    let groups = Command::new("find").args(["/sys/fs/cgroup", "-name", "sbx-*"]).output()?;
    left.extend(String::from_utf8(groups.stdout)?.lines().map(|group| format!("control group {group}")));
    Ok(left)
}

/// Looks until nothing is left, or the deadline passes: the kernel frees the dead a moment later.
pub(crate) fn expect_clean(place: &Path) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let left = leftovers(place)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("left on the host: {left:?}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a condition, with a deadline: what is awaited is checked, not hoped for.
pub(crate) async fn until<F: AsyncFnMut() -> Outcome<bool>>(what: &str, mut condition: F) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition().await? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
