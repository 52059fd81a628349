//! A real server in a home of its own, for the end-to-end tests, and a look at what it leaves on the host.
#![expect(dead_code, reason = "each test program uses its part")]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbar_client::{Client, Patience};

pub const SANDBAR: &str = env!("CARGO_BIN_EXE_sandbar");

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// `sandbar up` on a temporary home; killed and cleaned up when dropped.
pub struct Server {
    pub home: tempfile::TempDir,
    process: Option<Child>,
    /// What it printed on standard output.
    pub printed: Vec<String>,
}

impl Server {
    pub fn start() -> Outcome<Self> {
        let mut server = Self { home: tempfile::tempdir()?, process: None, printed: vec![] };
        server.restart()?;
        Ok(server)
    }

    /// Starts it, again if it was killed, and returns when it answers.
    pub fn restart(&mut self) -> Outcome {
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

    pub fn log_text(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    pub fn link(&self) -> Option<&str> {
        self.printed.iter().flat_map(|line| line.split_whitespace()).find(|word| word.contains("/#code="))
    }

    pub fn base(&self) -> Outcome<String> {
        Ok(self.link().and_then(|link| link.split("/#").next()).ok_or("no link")?.to_owned())
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("sandbar.sock")
    }

    pub fn client(&self) -> Outcome<Client> {
        Ok(Client::unix(self.socket())?)
    }

    /// A client that takes the first failure for the answer.
    pub fn impatient(&self) -> Outcome<Client> {
        Ok(self.client()?.with_patience(Patience::NONE))
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// SIGKILL, as the kernel's OOM killer or a power button would.
    pub fn kill(&mut self) -> Outcome {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SANDBAR);
        command.args(arguments).env("SANDBAR_HOME", self.home.path());
        command
    }

    /// Resident memory of the server, in KiB.
    pub fn resident(&self) -> Outcome<u64> {
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
pub fn guests(home: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(home.join("local")) else { return vec![] };
    entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("guest.pid")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse().ok())
        .collect()
}

/// What sandboxes could leave on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Processes in another pid namespace than ours, that is, in some sandbox.
    foreign: BTreeSet<i32>,
    mounts: usize,
    /// Control groups anywhere with a sandbox's name.
    groups: usize,
}

impl Host {
    pub fn look() -> Outcome<Self> {
        let ours = fs::metadata("/proc/self/ns/pid")?.ino();
        let mut foreign = BTreeSet::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            // A process that ended meanwhile is in no sandbox.
            if fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|found| found.ino() != ours) {
                foreign.insert(pid);
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?.lines().count();
        let groups = Command::new("find").args(["/sys/fs/cgroup", "-name", "sbx-*"]).output()?;
        Ok(Self { foreign, mounts, groups: groups.stdout.split(|byte| *byte == b'\n').count() })
    }

    /// Compares until it is as it was, or the deadline passes: the kernel frees the dead a moment later.
    pub fn expect_unchanged(&self) -> Outcome {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::look()?;
            if now.foreign.is_subset(&self.foreign) && now.mounts == self.mounts && now.groups == self.groups {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("left on the host: {now:?}, before: {self:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Waits for a condition, with a deadline: what is awaited is checked, not hoped for.
pub async fn until<F: AsyncFnMut() -> Outcome<bool>>(what: &str, mut condition: F) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition().await? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
