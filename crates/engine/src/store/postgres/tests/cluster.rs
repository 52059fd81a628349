//! A PostgreSQL of the test's own: Debian's programs, a directory that goes with the test's process, a socket in it.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, postgres::PgConnectOptions};

type Made<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NOBODY: &str = "65534";
/// The directory of a server that `tests/run` keeps for all tests: one for each of them would take longer than they do.
const RUNNERS: &str = "SANDBAR_TEST_POSTGRES";

pub(crate) struct Cluster {
    directory: PathBuf,
    programs: PathBuf,
    running: Option<Running>,
}

/// The server, and a shell that ends it and removes its directory when the pipe to it is closed, as it is when the test's
/// process ends, however that happens.
struct Running {
    keeper: Child,
    _pipe: ChildStdin,
}

/// Of all tests that do not stop it; None, said by name, where there is no PostgreSQL.
pub(crate) fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    let cluster = SHARED.get_or_init(|| Cluster::of_the_runner().or_else(Cluster::start));
    if cluster.is_none() {
        let test = std::thread::current().name().unwrap_or("a test on PostgreSQL").to_owned();
        // Not by the macro, whose words a test runner keeps to itself.
        sandbar_test_harness::missing(&test, "PostgreSQL");
    }
    cluster.as_ref()
}

/// The newest that is installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    let complete = |path: &PathBuf| path.join("initdb").exists() && path.join("postgres").exists();
    versions.filter(complete).max()
}

impl Cluster {
    fn of_the_runner() -> Option<Self> {
        let directory = PathBuf::from(std::env::var_os(RUNNERS)?);
        Some(Self { directory, programs: programs()?, running: None })
    }

    /// None where there is none installed; panics where one is and does not work.
    pub(crate) fn start() -> Option<Self> {
        let programs = programs()?;
        let made = sandbar_test_harness::scratch().and_then(|directory| {
            // It is given to another user, and removed by the shell.
            let path = directory.keep();
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).or_else(|error| match is_root() {
                true => Err(error),
                false => Ok(()),
            })?;
            Ok(path)
        });
        let directory = made.unwrap_or_else(|error| panic!("no directory for PostgreSQL: {error}"));
        let mut cluster = Self { directory, programs, running: None };
        let data = cluster.directory.join("data");
        let mut initdb = cluster.program("initdb");
        initdb.arg("-D").arg(&data).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C.UTF-8",
        ]);
        let out = initdb.output().unwrap_or_else(|error| panic!("initdb: {error}"));
        assert!(out.status.success(), "initdb: {}", String::from_utf8_lossy(&out.stderr));
        // `victim` needs a password, everybody else none.
        let rules = "local all victim scram-sha-256\nlocal all all trust\n";
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap_or_else(|error| panic!("pg_hba.conf: {error}"));
        cluster.run().unwrap_or_else(|error| panic!("PostgreSQL does not start: {error}"));
        Some(cluster)
    }

    fn program(&self, name: &str) -> Command {
        let path = self.programs.join(name);
        let mut command = match is_root() {
            // It refuses to run as root.
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        command.current_dir(&self.directory).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Starts it, or starts it again after [`Cluster::kill`].
    pub(crate) fn run(&mut self) -> Made<()> {
        let postgres = self.program("postgres");
        let words = std::iter::once(postgres.get_program()).chain(postgres.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
        let at = self.directory.display();
        let script = format!(
            "{} -D {at}/data -k {at} -c listen_addresses= -c fsync=off -c max_connections=300 -c shared_buffers=32MB \
             >>{at}/log 2>&1 </dev/null & server=$!
             read end
             kill -INT $server; wait $server
             test \"$end\" = stay || rm -rf {at}",
            words.join(" ")
        );
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keeper = shell.current_dir(&self.directory).env("LC_ALL", "C.UTF-8").spawn()?;
        let pipe = keeper.stdin.take().ok_or("no pipe")?;
        self.running = Some(Running { keeper, _pipe: pipe });
        let until = Instant::now() + Duration::from_secs(30);
        let socket = self.directory.join(".s.PGSQL.5432");
        let pid_file = self.directory.join("data/postmaster.pid");
        let is_ready = || std::fs::read_to_string(&pid_file).is_ok_and(|text| text.contains("ready"));
        while !is_ready() || std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if Instant::now() > until {
                let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                return Err(format!("it is not there after 30 s: {log}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// As if the host had lost its power: the server and all of its backends, at once.
    pub(crate) fn kill(&mut self) -> Made<()> {
        let pid = std::fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        let pid = pid.lines().next().ok_or("no pid")?.trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        for one in std::iter::once(pid.as_str()).chain(children.split_whitespace()) {
            let pid = rustix::process::Pid::from_raw(one.parse()?).ok_or("no pid")?;
            // A backend may have ended by itself.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
        if let Some(mut running) = self.running.take() {
            let mut pipe = running._pipe;
            pipe.write_all(b"stay\n")?;
            drop(pipe);
            running.keeper.wait()?;
        }
        // As they would be after the power came back.
        for left in [".s.PGSQL.5432", ".s.PGSQL.5432.lock", "data/postmaster.pid"] {
            std::fs::remove_file(self.directory.join(left)).ok();
        }
        Ok(())
    }

    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        let host = self.directory.display().to_string().replace('/', "%2F");
        format!("postgres://{user}@{host}/{database}")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    /// A new database, and its URL.
    pub(crate) async fn database(&self) -> Made<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
        Ok(self.url("postgres", &name))
    }

    pub(crate) async fn execute(&self, sql: &str) -> Made<()> {
        let options: PgConnectOptions = self.url("postgres", "postgres").parse()?;
        let mut connection = options.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(Running { mut keeper, _pipe }) = self.running.take() {
            drop(_pipe);
            // It removes the directory.
            keeper.wait().ok();
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
