//! A real server in a home of its own, for the end-to-end tests, and a look at what it leaves on the host.

pub(crate) mod cluster;
pub(crate) mod database;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, TcpListener},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant, SystemTime},
};

use sandbar_client::{Client, Patience};

use self::cluster::{Cluster, Namespace};

pub(crate) const SANDBAR: &str = env!("CARGO_BIN_EXE_sandbar");

/// The program under test; named by `SANDBAR_PROGRAM` where the tree itself cannot be read.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("SANDBAR_PROGRAM").map_or_else(|| PathBuf::from(SANDBAR), PathBuf::from)
}

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it and insists on success.
pub(crate) fn done(command: &mut Command) -> Outcome<String> {
    let Output { status, stdout, stderr } = command.output()?;
    if !status.success() {
        return Err(format!("{command:?}: {status}\n{}{}", text(&stdout), text(&stderr)).into());
    }
    Ok(text(&stdout))
}

/// Where `make test-needs` put what a test needs beside the system's programs; a test that lacks it says so.
pub(crate) fn installed(test: &str, what: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let found = cache.map(|cache| cache.join("sandbar-tests").join(what)).filter(|place| place.exists());
    if found.is_none() {
        sandbar_test_harness::missing(test, what);
    }
    found
}

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
    program: PathBuf,
    process: Option<Child>,
    /// What it printed on standard output.
    pub(crate) printed: Vec<String>,
    /// Besides where to listen.
    arguments: Vec<String>,
    /// Where its sandboxes are, on a cluster.
    pub(crate) namespace: Option<Namespace>,
}

impl Server {
    pub(crate) fn start() -> Outcome<Self> {
        Self::with(program(), Home::Ours(tempfile::tempdir()?))
    }

    /// In a home where something lies before the server looks.
    pub(crate) fn start_furnished(program: PathBuf, furnish: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        let home = tempfile::tempdir()?;
        furnish(home.path())?;
        Self::with(program, Home::Ours(home))
    }

    /// In a home that somebody else removes.
    pub(crate) fn start_in(home: PathBuf) -> Outcome<Self> {
        Self::start_by(program(), home)
    }

    /// By a program that prepares what it runs in, and becomes the server.
    pub(crate) fn start_by(program: PathBuf, home: PathBuf) -> Outcome<Self> {
        fs::create_dir(&home)?;
        Self::with(program, Home::Theirs(home))
    }

    /// In a home that another server has used, or a copy of it.
    pub(crate) fn start_again(home: Home) -> Outcome<Self> {
        Self::with(program(), home)
    }

    fn with(program: PathBuf, home: Home) -> Outcome<Self> {
        let mut server = Self { home, program, process: None, printed: vec![], arguments: vec![], namespace: None };
        if let Some(cluster) = Cluster::chosen() {
            let namespace = Namespace::of(&cluster, server.home.path())?;
            server = server.on(namespace, "reach = \"pod_ip\"")?;
        }
        server.restart()?;
        Ok(server)
    }

    /// With sandboxes on a cluster, in a home where something lies before it looks; what else `kubernetes.toml` says.
    pub(crate) fn start_on(cluster: &Cluster, more: &str, furnish: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        let home = tempfile::tempdir()?;
        fs::create_dir(home.path().join("templates"))?;
        furnish(home.path())?;
        let namespace = Namespace::of(cluster, home.path())?;
        let home = Home::Ours(home);
        let server =
            Self { home, program: program(), process: None, printed: vec![], arguments: vec![], namespace: None };
        let mut server = server.on(namespace, more)?;
        server.restart()?;
        Ok(server)
    }

    fn on(mut self, namespace: Namespace, more: &str) -> Outcome<Self> {
        namespace.furnish(self.home.path(), more)?;
        self.namespace = Some(namespace);
        self.arguments = ["--provider", "kubernetes"].map(String::from).into();
        Ok(self)
    }

    /// How many sandboxes its provider has, whatever the server knows.
    pub(crate) fn made(&self) -> Outcome<usize> {
        if let Some(namespace) = &self.namespace {
            return Ok(namespace.names("sandboxclaims")?.len());
        }
        let files = fs::read_dir(self.home.path().join("local"))?.flatten();
        Ok(files.filter(|entry| entry.file_name().to_string_lossy().starts_with("sbx-")).count())
    }

    /// Starts it, again if it was killed, and returns when it answers.
    pub(crate) fn restart(&mut self) -> Outcome {
        self.restart_with(&[])
    }

    /// And tells it more, this time only.
    pub(crate) fn restart_with(&mut self, more: &[&str]) -> Outcome {
        let mut command = self.up(more);
        command.stdout(Stdio::piped()).stderr(Stdio::from(self.log()?));
        // A program that was just written is busy while a child of another thread has yet to let go of it.
        let mut process = loop {
            match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                spawned => break spawned?,
            }
        };
        let stdout = process.stdout.take().ok_or("no stdout")?;
        self.process = Some(process);
        self.printed.clear();
        // How to sign in is the last line, printed when the server answers.
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let is_last = line.starts_with("sign in");
            self.printed.push(line);
            if is_last {
                return Ok(());
            }
        }
        Err(format!("the server ended: {}", fs::read_to_string(self.home.path().join("log"))?).into())
    }

    /// A start that is expected to be refused: what it says about it.
    pub(crate) fn refused(&self, more: &[&str]) -> Outcome<String> {
        let Output { status, stdout, stderr } = self.up(more).output()?;
        if status.code() != Some(1) || !stdout.is_empty() {
            return Err(format!("{status}: {}{}", text(&stdout), text(&stderr)).into());
        }
        Ok(text(&stderr))
    }

    fn up(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["up", "--listen", "127.0.0.1:0"]).args(&self.arguments).args(more);
        command.env("SANDBAR_HOME", self.home.path());
        command
    }

    fn log(&self) -> Outcome<fs::File> {
        Ok(fs::File::options().create(true).append(true).open(self.home.path().join("log"))?)
    }

    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Where programs call it.
    pub(crate) fn base(&self) -> Outcome<String> {
        let line = self.printed.iter().find(|line| line.starts_with("listening")).ok_or("it listens nowhere")?;
        Ok(line.split_whitespace().nth(1).ok_or("it listens nowhere")?.to_owned())
    }

    /// Where browsers sign in, and a code for one.
    pub(crate) fn sign_in(&self) -> Outcome<(String, String)> {
        let link = done(&mut self.command(&["open"]))?;
        let (url, code) = link.trim().split_once("/#code=").ok_or_else(|| format!("no link: {link}"))?;
        Ok((url.to_owned(), code.to_owned()))
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
        let mut command = Command::new(program());
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
        // Their groups can go as soon as the last of them is dead.
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Ok(groups) = groups(self.home.path())
            && groups.iter().filter(|group| fs::remove_dir(group).is_err()).count() > 0
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The control groups of a home, innermost first. They are named after its path, by FNV-1a.
pub(crate) fn groups(home: &Path) -> Outcome<Vec<PathBuf>> {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let name = home.join("local").as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
    let pattern = format!("*/sandbar/{name:016x}*");
    let found = Command::new("find").args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &pattern]).output()?;
    Ok(String::from_utf8(found.stdout)?.lines().map(PathBuf::from).collect())
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
pub(crate) fn leftovers(place: &Path) -> Outcome<Vec<String>> {
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
    let of_sandbox = |group: &PathBuf| group.components().any(|part| part.as_os_str().as_bytes().starts_with(b"sbx-"));
    left.extend(
        groups(place)?.iter().filter(|group| of_sandbox(group)).map(|group| format!("control group {group:?}")),
    );
    Ok(left)
}

/// Looks until nothing is left, or the deadline passes: the kernel frees the dead a moment later.
pub(crate) fn expect_clean(place: &Path) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(300);
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

/// Enough of a random number generator, seeded so that a failure can be repeated.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }
}

/// A port that nobody listens on, for later: below those that connections are given, so that none takes it meanwhile.
pub(crate) fn quiet_port(address: Ipv4Addr) -> Outcome<u16> {
    const LOWEST: u64 = 10_000;
    let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let given: u64 = given.split_whitespace().next().ok_or("no range")?.parse()?;
    // From 30000 a cluster gives them to its services.
    let above = given.clamp(20_000, 30_000);
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos();
    let mut dice = Dice(u64::from(seed) ^ (u64::from(std::process::id()) << 32));
    for _ in 0..1000 {
        let port = u16::try_from(LOWEST + dice.roll(above - LOWEST))?;
        if TcpListener::bind((address, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(format!("no port of {address} is free").into())
}

/// The event log counts 1, 2, 3, … to its end, which is told.
pub(crate) async fn expect_gapless(client: &Client) -> Outcome<u64> {
    let mut next = 1;
    loop {
        let page = client.event_page(next, Some(1000), None).await?;
        if page.is_empty() {
            return Ok(next - 1);
        }
        for event in page {
            assert_eq!(event.seq, next, "a gap in the event log");
            next += 1;
        }
    }
}

/// Waits for a condition, with a deadline: what is awaited is checked, not hoped for.
pub(crate) async fn until<F: AsyncFnMut() -> Outcome<bool>>(what: &str, mut condition: F) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !condition().await? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// What a counter wrote, into a pipe or a terminal: 0, 1, 2, … and `end`, each line once.
pub(crate) fn expect_counted(seen: &[u8]) -> Outcome {
    let text = std::str::from_utf8(seen)?.replace('\r', "");
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.pop(), Some("end"));
    assert!(lines.len() > 1000, "the counter hardly ran: {} lines", lines.len());
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, number.to_string(), "line {number} is missing or came twice");
    }
    Ok(())
}

/// Runs a command by the tool `exec` of MCP, as a client of its newest revision does, and gives the whole answer.
pub(crate) async fn tool(url: &str, authorization: &str, command: &str) -> Outcome<String> {
    let meta = serde_json::json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = serde_json::json!({"name": "exec", "arguments": {"command": command}, "_meta": meta});
    let request = reqwest::Client::new()
        .post(url)
        .header("authorization", authorization)
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "exec")
        .json(&serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    Ok(request.send().await?.text().await?)
}
