//! The older HTTP API, by default on port 8888.

use std::time::Duration;

use bytes::Bytes;
use chrono::DateTime;
use reqwest::{
    Method,
    multipart::{Form, Part},
};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncWrite;

use super::{
    Connection, Entry, Kind, Retry, RuntimeError,
    answer::{self, MAX_ANSWER},
    http::Port,
    path::Path,
};

const PORT: u16 = 8888;
/// For the answer to come after a command's own limit.
const MARGIN: Duration = Duration::from_secs(10);

/// A client of the older HTTP API. Paths are relative to the directory that the runtime serves.
#[derive(Clone)]
pub struct Legacy {
    connection: Connection,
    port: Port,
}

/// How a command of [`Legacy`] ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Executed {
    /// Its output.
    #[serde(default)]
    pub stdout: String,
    /// Its errors; also why it could not be run.
    #[serde(default)]
    pub stderr: String,
    /// Its exit code, -1 where the runtime told none.
    #[serde(default = "unknown")]
    pub exit_code: i32,
    /// Whether it was killed because its time was up.
    #[serde(default)]
    pub timed_out: bool,
}

fn unknown() -> i32 {
    -1
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    size: u64,
    #[serde(rename = "type")]
    kind: Kind,
    mod_time: f64,
}

#[derive(Deserialize)]
struct Exists {
    exists: bool,
}

impl Legacy {
    /// On its usual port, where the connection does not say one.
    pub fn new(connection: impl Into<Connection>) -> Result<Self, RuntimeError> {
        let connection = connection.into();
        Ok(Self { port: Port::new(&connection, PORT)?, connection })
    }

    /// On another port of the sandbox.
    pub fn port(self, port: u16) -> Result<Self, RuntimeError> {
        Ok(Self { port: self.port.another(&self.connection, port)?, ..self })
    }

    /// Waits no longer than this for an answer, or for more of one; 60 s unless told.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.port.timeout = timeout;
        self
    }

    /// Repeats what can be repeated in another way.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.port.retry = retry;
        self
    }

    /// Whether the runtime answers.
    pub async fn health(&self) -> Result<(), RuntimeError> {
        self.port.send(self.port.request(Method::GET, "/")).await.map(drop)
    }

    /// Runs a command, which the runtime splits into words as a shell does and runs without one. `limit` is the command's own;
    /// without one the runtime's holds. It is never sent twice.
    pub async fn execute(&self, command: &str, limit: Option<Duration>) -> Result<Executed, RuntimeError> {
        let mut asked = json!({ "command": command });
        let mut wait = self.port.timeout;
        if let Some(limit) = limit {
            asked["timeout_seconds"] = json!(limit.as_secs_f64());
            wait = wait.max(limit + MARGIN);
        }
        let request = self.port.request(Method::POST, "/execute").json(&asked);
        answer::json(self.port.send_within(request, wait).await?, wait).await
    }

    /// Writes a file and makes the directories it needs. It is never sent twice.
    pub async fn upload(&self, path: &str, content: impl Into<Bytes>) -> Result<(), RuntimeError> {
        let content = content.into();
        let length = content.len() as u64;
        let part = Part::stream_with_length(content, length).file_name(Path::of(path)?.plain());
        // The runtime reads the name as it stands.
        let form = Form::new().percent_encode_noop().part("file", part);
        self.port.send(self.port.request(Method::POST, "/upload").multipart(form)).await.map(drop)
    }

    /// Reads a file, of at most 256 MiB.
    pub async fn download(&self, path: &str) -> Result<Bytes, RuntimeError> {
        answer::collect(self.get("download", &Path::of(path)?).await?, MAX_ANSWER, self.port.timeout).await
    }

    /// Copies a file of any size, and returns it.
    pub async fn download_to(&self, path: &str, to: &mut (impl AsyncWrite + Unpin)) -> Result<u64, RuntimeError> {
        answer::copy(self.get("download", &Path::of(path)?).await?, to, self.port.timeout).await
    }

    /// The entries of a directory; `/` is the one that the runtime serves.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, RuntimeError> {
        let listed: Vec<Listed> =
            answer::json(self.get("list", &Path::or_root(path)?).await?, self.port.timeout).await?;
        listed.into_iter().map(Entry::try_from).collect()
    }

    /// Whether there is such a file or directory.
    pub async fn exists(&self, path: &str) -> Result<bool, RuntimeError> {
        let told: Exists = answer::json(self.get("exists", &Path::of(path)?).await?, self.port.timeout).await?;
        Ok(told.exists)
    }

    async fn get(&self, call: &str, path: &Path) -> Result<reqwest::Response, RuntimeError> {
        self.port.send(self.port.request(Method::GET, &format!("/{call}/{}", path.one_piece()))).await
    }
}

impl TryFrom<Listed> for Entry {
    type Error = RuntimeError;

    fn try_from(listed: Listed) -> Result<Self, RuntimeError> {
        let Listed { name, size, kind, mod_time } = listed;
        let whole = Duration::try_from_secs_f64(mod_time).ok();
        let modified = whole
            .and_then(|since| DateTime::from_timestamp(i64::try_from(since.as_secs()).ok()?, since.subsec_nanos()));
        let modified = modified.ok_or_else(|| RuntimeError::BadAnswer(format!("{name}: changed at {mod_time}")))?;
        Ok(Self { name, size, kind, modified, mode: None })
    }
}
