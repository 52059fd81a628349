//! A PostgreSQL of one test's own: Debian's programs, reached by TCP with a password, gone when the test is.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::{Outcome, done, quiet_port};

pub(crate) const PASSWORD: &str = "hunter2-of-the-tests";
/// It refuses to run as root.
const NOBODY: u32 = 65534;

pub(crate) struct Database {
    directory: PathBuf,
    programs: PathBuf,
    address: Ipv4Addr,
    port: u16,
    /// A shell that ends it and removes its directory when the pipe to it is closed, however the test ends.
    keeper: Child,
}

impl Database {
    /// None, said by name, where there is no PostgreSQL.
    pub(crate) fn or_not_run(test: &str, address: Ipv4Addr) -> Outcome<Option<Self>> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let complete = |path: &PathBuf| path.join("initdb").exists() && path.join("postgres").exists();
        let Some(programs) = versions.map(|entry| entry.path().join("bin")).filter(complete).max() else {
            sandbar_test_harness::missing(test, "PostgreSQL");
            return Ok(None);
        };
        Self::start(programs, address).map(Some)
    }

    fn start(programs: PathBuf, address: Ipv4Addr) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("sandbar-pg-").tempdir()?.keep();
        let is_root = rustix::process::geteuid().is_root();
        let [data, password] = ["data", "password"].map(|name| directory.join(name));
        fs::write(&password, PASSWORD)?;
        if is_root {
            for path in [&directory, &password] {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))?;
            }
        }
        let as_nobody = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups -- ");
        let prefix = if is_root { as_nobody.as_str() } else { "" };
        let (here, at) = (directory.display(), programs.display());
        let port = quiet_port(address)?;
        let script = format!(
            "{prefix}{at}/initdb -D {here}/data -U postgres -A scram-sha-256 --pwfile={here}/password -E UTF8 --no-sync \
             --locale=C.UTF-8 >{here}/log 2>&1 </dev/null
             echo 'host all all 0.0.0.0/0 scram-sha-256' >{here}/data/pg_hba.conf
             {prefix}{at}/postgres -D {here}/data -k {here} -h {address} -p {port} -c fsync=off -c shared_buffers=32MB \
             >>{here}/log 2>&1 </dev/null & server=$!
             read end
             kill -INT $server; wait $server; rm -rf {here}"
        );
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).current_dir(&directory).env("LC_ALL", "C.UTF-8");
        let keeper = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let database = Self { directory, programs, address, port, keeper };
        let deadline = Instant::now() + Duration::from_secs(300);
        let is_ready = || fs::read_to_string(data.join("postmaster.pid")).is_ok_and(|text| text.contains("ready"));
        while !is_ready() || TcpStream::connect((address, port)).is_err() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(database.directory.join("log")).unwrap_or_default();
                return Err(format!("PostgreSQL does not start: {log}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(database)
    }

    pub(crate) fn url(&self) -> String {
        self.url_of(PASSWORD, "postgres")
    }

    pub(crate) fn url_of(&self, password: &str, database: &str) -> String {
        format!("postgres://postgres:{password}@{}:{}/{database}", self.address, self.port)
    }

    pub(crate) fn execute(&self, sql: &str) -> Outcome<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        let place = [self.address.to_string(), self.port.to_string()];
        psql.args(["-X", "-A", "-t", "-U", "postgres", "-h", &place[0], "-p", &place[1], "-c", sql, "postgres"]);
        Ok(done(psql.env("PGPASSWORD", PASSWORD))?.trim().to_owned())
    }

    /// Ends the connection that makes a server the one that leads.
    pub(crate) fn drop_leader(&self) -> Outcome {
        let dropped = self.execute("SELECT pg_terminate_backend(CAST(backend AS INTEGER)) FROM leadership")?;
        if dropped == "t" { Ok(()) } else { Err(format!("nobody leads: {dropped}").into()) }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _removed = self.keeper.wait();
    }
}
