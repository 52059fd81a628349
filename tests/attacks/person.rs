//! A person's terminal around the command line, and the programs that they look at.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sandbar_api::{StartProcess, TerminalSize};
use sandbar_client::Client;

use crate::{
    stage::{Stage, Target},
    support::{Outcome, until},
};

/// A command on a real terminal that keeps every byte it is shown.
pub(crate) struct Person {
    child: Child,
    keys: fs::File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Ends when nobody has the terminal any more and all was read.
    reader: JoinHandle<()>,
}

impl Person {
    pub(crate) fn sits(command: &Command) -> Outcome<Self> {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&keys)?;
        unlockpt(&keys)?;
        let name = ptsname(&keys, Vec::new())?.into_string()?;
        // Where this program leads its session, the terminal must not become its own: its end would end us too.
        let screen = fs::File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name)?;
        tcsetwinsize(&screen, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
        let mut person = Command::new("setsid");
        person.arg("--ctty").arg(command.get_program()).args(command.get_args());
        person.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        person.env("TERM", "xterm-256color").env_remove("SANDBAR_DETACH_KEYS");
        person.stdin(Stdio::from(screen.try_clone()?)).stdout(Stdio::from(screen.try_clone()?));
        let child = person.stderr(Stdio::from(screen)).spawn()?;
        let keys = fs::File::from(keys);
        let (mut shown, seen) = (keys.try_clone()?, Arc::<Mutex<Vec<u8>>>::default());
        let kept = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 65536];
            while let Ok(count @ 1..) = shown.read(&mut piece) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..count]);
            }
        });
        Ok(Self { child, keys, seen, reader })
    }

    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn types(&mut self, keys: &[u8]) -> Outcome {
        Ok(self.keys.write_all(keys)?)
    }

    pub(crate) async fn sees(&self, word: &str) -> Outcome {
        let found = async || Ok(holds(&self.seen(), word.as_bytes()));
        until(word, found).await.map_err(|error| format!("{error}: {}", readable(&self.seen())).into())
    }

    /// All that was shown by the command's end.
    pub(crate) fn leaves(mut self) -> Outcome<Vec<u8>> {
        let end = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > end {
                return Err(format!("it does not end: {}", readable(&self.seen())).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // What the kernel still has of it.
        let end = Instant::now() + Duration::from_secs(30);
        while !self.reader.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self.seen())
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) fn holds(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

pub(crate) fn readable(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(600);
    bytes[from..].escape_ascii().to_string()
}

/// What all programs begin with: the workspace, a directory of the host, is how they are told and tell.
const PRELUDE: &str = r#"
import fcntl, os, select, struct, sys, termios, time, tty
TAG = sys.argv[1]
def place(name): return "/workspace/%s-%s" % (name, TAG)
def await_(name):
    while not os.path.exists(place(name)): time.sleep(0.01)
def put(name, data):
    with open(place(name) + "~", "wb") as file: file.write(data)
    os.rename(place(name) + "~", place(name))
def get(name):
    with open(place(name), "rb") as file: return file.read()
def say(data):
    while data: data = data[os.write(1, data):]
def heard(silence):
    got = b""
    while select.select([0], [], [], silence)[0]:
        data = os.read(0, 65536)
        if not data: break
        got += data
    return got
# All up to so many answers that end like this, and a while longer. The server gives none that would be late.
def answered(question, last, count=1):
    for _ in range(3):
        say(question)
        got, end = b"", time.monotonic() + 12
        while got.count(last) < count and time.monotonic() < end: got += heard(0.1)
        if got.count(last) >= count: break
    return got + heard(0.8)
# The last of all answers, and one that nothing else asks for.
def last_answered(): return answered(b'\x1bP$q"p\x1b\\', b'62;1"p\x1b\\')
"#;

/// A program in a terminal of a sandbox.
pub(crate) struct Program<'a> {
    pub(crate) client: &'a Client,
    pub(crate) sandbox: &'a str,
    pub(crate) process: String,
    shared: &'a Path,
    tag: u32,
}

impl<'a> Program<'a> {
    pub(crate) async fn start(stage: &'a Stage, target: &'a Target, body: &str) -> Outcome<Self> {
        Self::start_with(stage, target, body, &[]).await
    }

    /// With files that are there before it begins.
    pub(crate) async fn start_with(
        stage: &'a Stage,
        target: &'a Target,
        body: &str,
        files: &[(&str, &[u8])],
    ) -> Outcome<Self> {
        Self::run(&stage.client, &target.id, &target.shared, stage.number(), body, files).await
    }

    pub(crate) async fn run(
        client: &'a Client,
        sandbox: &'a str,
        shared: &'a Path,
        tag: u32,
        body: &str,
        files: &[(&str, &[u8])],
    ) -> Outcome<Self> {
        let mut program = Self { client, sandbox, process: String::new(), shared, tag };
        for (name, data) in files {
            fs::write(program.place(name), data)?;
        }
        let argv = ["python3", "-u", "-c", &format!("{PRELUDE}{body}"), &tag.to_string()].map(str::to_owned).to_vec();
        let terminal = Some(TerminalSize { cols: 80, rows: 24 });
        let request = StartProcess { argv, terminal, stdin: true, ..StartProcess::default() };
        program.process = client.start_process(sandbox, &request).await?.id.to_string();
        Ok(program)
    }

    pub(crate) fn place(&self, name: &str) -> std::path::PathBuf {
        self.shared.join(format!("{name}-{}", self.tag))
    }

    pub(crate) fn tell(&self, name: &str) -> Outcome {
        Ok(fs::write(self.place(name), b"")?)
    }

    /// What it wrote to a file of that name, once it did.
    pub(crate) async fn tells(&self, name: &str) -> Outcome<Vec<u8>> {
        let place = self.place(name);
        let waited = until(name, async || Ok(place.exists())).await;
        match waited {
            Ok(()) => Ok(fs::read(place)?),
            Err(error) => Err(format!("{error}: {}", self.screen().await).into()),
        }
    }

    pub(crate) async fn screen(&self) -> String {
        let shown = self.client.screen_text(self.sandbox, &self.process, sandbar_api::ScreenFormat::Text).await;
        shown.map_or_else(|error| error.to_string(), |text| text.trim_end().to_owned())
    }

    pub(crate) async fn end(self) -> Outcome {
        self.client.signal(self.sandbox, &self.process, "KILL").await?;
        let over = async || Ok(self.client.process(self.sandbox, &self.process).await?.exit.is_some());
        until("the program ends", over).await
    }
}
