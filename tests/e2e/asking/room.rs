//! A server with one session, in whose terminals the programs run, and a person who answers them by the command line.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use sandbar_api::{AnswerApproval, Code, StartProcess, TerminalSize};
use serde_json::Value;

use crate::{
    asking::plays::{Answer, Play, SECRET, Step},
    support::{Outcome, Server, done, program, text, until},
};

pub(crate) const NAME: &str = "box";
/// How the command line ends when the terminal has moved on.
const CONFLICT: i32 = 5;

pub(crate) struct Room {
    pub(crate) server: Server,
    test: String,
    /// The program that starts the server.
    _place: tempfile::TempDir,
}

impl Room {
    pub(crate) fn open(test: &str) -> Outcome<Self> {
        Self::furnished(test, |_| Ok(()))
    }

    /// Its server's log tells everything there is to tell.
    pub(crate) fn furnished(test: &str, furnish: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let loud = place.path().join("sandbar");
        fs::write(&loud, format!("#!/bin/sh\nSANDBAR_LOG=trace exec {} \"$@\"\n", program().display()))?;
        fs::set_permissions(&loud, fs::Permissions::from_mode(0o755))?;
        let server = Server::start_furnished(loud, furnish)?;
        Ok(Self { server, test: test.to_owned(), _place: place })
    }

    /// A session whose command is this script.
    pub(crate) fn begin(&self, script: &str) -> Outcome {
        self.begin_with(&[], script)
    }

    pub(crate) fn begin_with(&self, options: &[&str], script: &str) -> Outcome {
        let mut arguments = vec!["session", "new", "-d", "--name", NAME, "-e", "TERM=xterm-256color"];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        done(&mut self.server.command(&arguments)).map(drop)
    }

    /// Another terminal, or the first where there is none.
    pub(crate) async fn start(&self, script: &str) -> Outcome<String> {
        let client = self.server.client()?;
        if client.sandbox(NAME).await.is_err() {
            done(&mut self.server.command(&["create", "--name", NAME]))?;
        }
        let request = StartProcess {
            argv: vec!["bash".into(), "-c".into(), script.into()],
            terminal: Some(TerminalSize { cols: 80, rows: 24 }),
            ..StartProcess::default()
        };
        Ok(client.start_process(NAME, &request).await?.id.to_string())
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Outcome<Value> {
        let arguments: Vec<&str> = ["--json"].iter().chain(arguments).copied().collect();
        Ok(serde_json::from_str(&done(&mut self.server.command(&arguments))?)?)
    }

    pub(crate) fn approvals(&self, options: &[&str]) -> Outcome<Vec<Value>> {
        let arguments: Vec<&str> = ["approvals"].iter().chain(options).copied().collect();
        let listed = self.json(&arguments)?;
        Ok(listed["approvals"].as_array().cloned().unwrap_or_default())
    }

    /// The open question that says this, once there is one.
    pub(crate) async fn asked(&self, question: &str) -> Outcome<Value> {
        let mut found = None;
        let waited = until(question, async || {
            let open = self.approvals(&[])?;
            found = open.into_iter().find(|one| one["question"].as_str().is_some_and(|asked| asked.contains(question)));
            Ok(found.is_some())
        })
        .await;
        found.ok_or_else(|| {
            format!("{}: {waited:?}: {:?}\n{}", self.test, self.approvals(&["-a"]), self.screen()).into()
        })
    }

    pub(crate) fn screen(&self) -> String {
        done(&mut self.server.command(&["screen", NAME])).unwrap_or_else(|error| error.to_string())
    }

    pub(crate) async fn seen(&self, sign: &str) -> Outcome {
        let waited = until(sign, async || Ok(self.screen().contains(sign))).await;
        waited.map_err(|error| format!("{}: {error}\n{}", self.test, self.screen()).into())
    }

    /// Answers each question in its turn, and sees that the program took it.
    pub(crate) async fn take_part(&self, play: &Play) -> Outcome {
        let mut before = Value::Null;
        for step in play.steps {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
            let mut asked = self.asked_anew(step, &before).await?;
            while !self.answered(step, &asked).await? {
                assert!(tokio::time::Instant::now() < deadline, "{asked:#}\n{}", self.screen());
                asked = self.asked_anew(step, &before).await?;
            }
            before = asked["id"].take();
        }
        self.seen(play.sign).await
    }

    /// False if nothing was typed, because the program has drawn something since: it is then asked about anew.
    async fn answered(&self, step: &Step, asked: &Value) -> Outcome<bool> {
        assert_eq!((&asked["kind"], &asked["context"]["prompt"]), (&"terminal".into(), &step.kind.into()), "{asked:#}");
        let choices: Vec<(&str, &str)> = asked["choices"]
            .as_array()
            .ok_or("no choices")?
            .iter()
            .map(|choice| (choice["id"].as_str().unwrap_or_default(), choice["label"].as_str().unwrap_or_default()))
            .collect();
        let labels: Vec<&str> = choices.iter().map(|(_, label)| *label).collect();
        let expected: Vec<&str> = step.choices.iter().map(|(label, _)| *label).collect();
        assert!(labels.starts_with(&expected), "{asked:#}");
        let id = asked["id"].as_str().ok_or("no id")?;
        let taken = match step.answer {
            Answer::Text(text) => self.answer_in_words(id, text).await?,
            Answer::Choice(label) => {
                let (choice, _) = choices.iter().find(|(_, known)| *known == label).ok_or("no such choice")?;
                let output = self.server.command(&["answer", id, "--choice", choice]).output()?;
                match output.status.code() {
                    Some(0) => true,
                    Some(CONFLICT) => false,
                    _ => return Err(text(&output.stderr).into()),
                }
            }
        };
        Ok(taken && self.typed(id).await?)
    }

    /// The same question may be asked once more.
    async fn asked_anew(&self, step: &Step, before: &Value) -> Outcome<Value> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
        loop {
            let asked = self.asked(step.question).await?;
            if asked["id"] != *before {
                return Ok(asked);
            }
            assert!(tokio::time::Instant::now() < deadline, "{asked:#}\n{}", self.screen());
        }
    }

    async fn answer_in_words(&self, id: &str, words: &str) -> Outcome<bool> {
        let request = AnswerApproval { choice: "text".into(), text: Some(words.into()) };
        match self.server.client()?.answer_approval(id, &request).await {
            Err(error) if matches!(error.code(), Some(Code::ScreenMoved | Code::ApprovalClosed)) => Ok(false),
            answered => Ok(answered.map(|_| true)?),
        }
    }

    /// Whether it is, once that is known.
    async fn typed(&self, id: &str) -> Outcome<bool> {
        let mut last = Value::Null;
        let waited = until("the answer is typed", async || {
            last = self.approvals(&["-a"])?.into_iter().find(|one| one["id"] == id).unwrap_or_default();
            Ok(last["delivery"] == "typed" || last["delivery"] == "refused")
        })
        .await;
        waited.map_err(|error| format!("{}: {error}: {last:#}\n{}", self.test, self.screen()))?;
        Ok(last["delivery"] == "typed")
    }

    /// Neither in any file of the home nor in what it tells; that the question is found shows that looking finds.
    pub(crate) fn expect_secret_nowhere(&self, play: &Play) -> Outcome {
        if !play.steps.iter().any(|step| step.kind == "password") {
            return Ok(());
        }
        let question = play.steps.iter().find(|step| step.kind == "password").map_or("", |step| step.question);
        assert!(!holding(self.server.home.path(), question)?.is_empty(), "{question} is nowhere");
        assert_eq!(holding(self.server.home.path(), SECRET)?, Vec::<PathBuf>::new());
        for told in [&["--json", "approvals", "-a"][..], &["--json", "events"], &["transcript", NAME], &["logs", NAME]]
        {
            let output = self.server.command(told).output()?;
            let told = text(&output.stdout) + &text(&output.stderr);
            assert!(!told.contains(SECRET), "{told}");
        }
        Ok(())
    }

    pub(crate) fn close(self) -> Outcome {
        done(&mut self.server.command(&["rm", "-f", NAME])).map(drop)
    }
}

/// The files below a directory in which these words stand.
fn holding(place: &Path, words: &str) -> Outcome<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let about = entry.metadata()?;
        // The kernel keeps its own scratch directory from everybody; nothing is ever kept in it.
        if about.is_dir() && about.permissions().mode() & 0o777 != 0 {
            found.extend(holding(&entry.path(), words)?);
        } else if about.is_file() {
            let bytes = match fs::read(entry.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                read => read?,
            };
            if bytes.windows(words.len()).any(|window| window == words.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Whether sandboxes find these programs of the host: they have `/usr`. Says so by name where not.
pub(crate) fn has(test: &str, programs: &[&str]) -> bool {
    let found = |program: &&&str| {
        ["/usr/local/bin", "/usr/bin", "/usr/sbin"].iter().any(|folder| Path::new(folder).join(program).exists())
    };
    let missing: Vec<&str> = programs.iter().filter(|program| !found(program)).copied().collect();
    if !missing.is_empty() {
        sandbar_test_harness::not_run(test, &format!("{} not below /usr", missing.join(", ")));
    }
    missing.is_empty()
}
