//! What must be so: the sandboxes there are, what is in their files, the snapshots and the pools. Pure.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_api::{Code, SandboxState};

/// The files that are written, in the workspace and in the root's overlay. Some are in directories that come and go.
pub(crate) const PATHS: [&str; 4] = ["/workspace/a", "/workspace/d/b", "/home/agent/a", "/home/agent/d/b"];
pub(crate) const DIRECTORIES: [&str; 2] = ["/workspace/d", "/home/agent/d"];

/// What each of the paths holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) text: BTreeMap<&'static str, String>,
    /// Of the layers below: a provider stacks only so many.
    pub(crate) depth: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    Append(&'static str, String),
    Remove(&'static str),
    /// Removed with all in it, and made again: opaque in the layer above.
    Renew(&'static str),
}

impl Files {
    fn write(&mut self, write: &Write) {
        match write {
            Write::Append(path, word) => self.text.entry(path).or_default().push_str(word),
            Write::Remove(path) => drop(self.text.remove(path)),
            Write::Renew(directory) => self.text.retain(|path, _| !path.starts_with(directory)),
        }
    }

    /// As `Step::Write` reads it back.
    pub(crate) fn shown(&self) -> String {
        self.text.iter().map(|(path, text)| format!("{path}={text}\n")).collect()
    }

    fn above(&self) -> Self {
        Self { depth: self.depth + 1, ..self.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Template(&'static str),
    /// Of a template whose pool, if it has one, is full by then.
    Pool(&'static str),
    Snapshot(String),
}

/// One verb.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Create {
        name: String,
        source: Source,
    },
    /// Writes, and reads everything back.
    Write {
        name: String,
        writes: Vec<Write>,
    },
    /// A process that goes on until it is ended.
    Run {
        name: String,
    },
    Pause {
        name: String,
    },
    Resume {
        name: String,
    },
    Stop {
        name: String,
    },
    Start {
        name: String,
    },
    Delete {
        name: String,
    },
    Snapshot {
        name: String,
        snapshot: String,
    },
    DeleteSnapshot {
        snapshot: String,
    },
    Fork {
        name: String,
        prefix: String,
        count: u32,
    },
    SetPool {
        template: &'static str,
        size: u32,
    },
}

impl Step {
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::Create { source: Source::Template(_), .. } => "create",
            Self::Create { source: Source::Pool(_), .. } => "claim",
            Self::Create { source: Source::Snapshot(_), .. } => "create from",
            Self::Write { .. } => "exec",
            Self::Run { .. } => "run",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Stop { .. } => "stop",
            Self::Start { .. } => "start",
            Self::Delete { .. } => "delete",
            Self::Snapshot { .. } => "snapshot",
            Self::DeleteSnapshot { .. } => "delete snapshot",
            Self::Fork { .. } => "fork",
            Self::SetPool { .. } => "set pool",
        }
    }

    /// What it depends on or changes. Steps that have nothing of it in common can be taken at once.
    pub(crate) fn touches(&self) -> BTreeSet<String> {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match self {
            Self::Create { name, source: Source::Template(_) | Source::Pool(_) }
            | Self::Write { name, .. }
            | Self::Run { name }
            | Self::Pause { name }
            | Self::Resume { name }
            | Self::Stop { name }
            | Self::Start { name }
            | Self::Delete { name } => of(&[name]),
            Self::Create { name, source: Source::Snapshot(snapshot) } | Self::Snapshot { name, snapshot } => {
                of(&[name, snapshot])
            }
            Self::DeleteSnapshot { snapshot } => of(&[snapshot]),
            Self::Fork { name, prefix, count } => forks(prefix, *count).into_iter().chain([name.clone()]).collect(),
            Self::SetPool { template, .. } => of(&[template]),
        }
    }
}

pub(crate) fn forks(prefix: &str, count: u32) -> Vec<String> {
    (1..=count).map(|number| format!("{prefix}-{number}")).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) state: SandboxState,
    pub(crate) files: Files,
    /// What was started and not ended.
    pub(crate) running: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    pub(crate) snapshots: BTreeMap<String, Files>,
    pub(crate) pools: BTreeMap<&'static str, u32>,
    /// Whether this host lets us freeze: without, nothing that runs can be paused, or kept.
    pub(crate) freezes: bool,
}

/// The answer that has to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Done,
    Refused(Code),
    /// Done, as it was done before, or refused because it was never there.
    DoneOr(Code),
}

/// What an answer tells besides success.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) ids: Vec<String>,
    pub(crate) output: String,
}

impl Model {
    pub(crate) fn expects(&self, step: &Step) -> Expected {
        use Expected::{Done, DoneOr, Refused};
        use SandboxState::{Failed, Paused, Ready, Stopped};
        let within = |name: &String, states: &[SandboxState]| match self.sandboxes.get(name) {
            None => Refused(Code::UnknownSandbox),
            Some(sandbox) if states.contains(&sandbox.state) => Done,
            Some(_) => Refused(Code::WrongState),
        };
        let still = |name: &String, expected| match self.sandboxes.get(name) {
            Some(sandbox) if expected == Done && sandbox.state == Ready && !self.freezes => {
                Refused(Code::NotEnforceable)
            }
            _ => expected,
        };
        match step {
            Step::Create { source: Source::Snapshot(snapshot), .. } if !self.snapshots.contains_key(snapshot) => {
                Refused(Code::UnknownSnapshot)
            }
            Step::Create { name, .. } if self.sandboxes.contains_key(name) => Refused(Code::NameTaken),
            Step::Create { .. } | Step::SetPool { .. } => Done,
            Step::Write { name, .. } | Step::Run { name } => within(name, &[Ready]),
            Step::Pause { name } => still(name, within(name, &[Ready, Paused])),
            Step::Resume { name } => within(name, &[Ready, Paused]),
            Step::Stop { name } => within(name, &[Ready, Paused, Stopped]),
            Step::Start { name } => within(name, &[Ready, Stopped, Failed]),
            Step::Delete { name } if self.sandboxes.contains_key(name) => Done,
            Step::Delete { .. } => DoneOr(Code::UnknownSandbox),
            Step::Snapshot { name, snapshot } => match within(name, &[Ready, Paused, Stopped]) {
                Done if self.snapshots.contains_key(snapshot) => Refused(Code::NameTaken),
                expected => still(name, expected),
            },
            Step::DeleteSnapshot { snapshot } if self.snapshots.contains_key(snapshot) => Done,
            Step::DeleteSnapshot { .. } => DoneOr(Code::UnknownSnapshot),
            Step::Fork { name, .. } if !self.sandboxes.contains_key(name) => Refused(Code::UnknownSandbox),
            Step::Fork { name, prefix, count } => {
                let taken = forks(prefix, *count).iter().any(|fork| self.sandboxes.contains_key(fork));
                let possible = still(name, within(name, &[Ready, Paused, Stopped]));
                if taken { Refused(Code::NameTaken) } else { possible }
            }
        }
    }

    /// It was done.
    pub(crate) fn takes(&mut self, step: &Step, told: &Told) {
        let mut ids = told.ids.iter();
        let mut id = || ids.next().cloned().unwrap_or_default();
        match step {
            Step::Create { name, source } => {
                let files = match source {
                    Source::Template(_) | Source::Pool(_) => Files::default(),
                    Source::Snapshot(snapshot) => self.snapshots.get(snapshot).cloned().unwrap_or_default(),
                };
                self.add(name.clone(), id(), files);
            }
            Step::Write { name, writes } => {
                if let Some(sandbox) = self.sandboxes.get_mut(name) {
                    writes.iter().for_each(|write| sandbox.files.write(write));
                }
            }
            Step::Run { name } => {
                if let Some(sandbox) = self.sandboxes.get_mut(name) {
                    sandbox.running.insert(id());
                }
            }
            Step::Pause { name } => self.turn(name, SandboxState::Paused),
            Step::Resume { name } | Step::Start { name } => self.turn(name, SandboxState::Ready),
            Step::Stop { name } => self.turn(name, SandboxState::Stopped),
            Step::Delete { name } => drop(self.sandboxes.remove(name)),
            Step::Snapshot { name, snapshot } => {
                let files = self.sandboxes.get(name).map(|sandbox| sandbox.files.above()).unwrap_or_default();
                self.snapshots.insert(snapshot.clone(), files);
            }
            Step::DeleteSnapshot { snapshot } => drop(self.snapshots.remove(snapshot)),
            Step::Fork { name, prefix, count } => {
                let files = self.sandboxes.get(name).map(|sandbox| sandbox.files.above()).unwrap_or_default();
                forks(prefix, *count).into_iter().for_each(|fork| self.add(fork, id(), files.clone()));
            }
            Step::SetPool { template, size } => drop(self.pools.insert(template, *size)),
        }
    }

    fn add(&mut self, name: String, id: String, files: Files) {
        let (state, running) = (SandboxState::Ready, BTreeSet::new());
        self.sandboxes.insert(name, Sandbox { id, state, files, running });
    }

    pub(crate) fn turn(&mut self, name: &str, state: SandboxState) {
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            sandbox.state = state;
            if matches!(state, SandboxState::Stopped | SandboxState::Failed) {
                sandbox.running.clear();
            }
        }
    }

    /// What a step that changes the files of a sandbox would leave in them.
    pub(crate) fn shown_after(&self, step: &Step) -> Option<String> {
        let Step::Write { name, .. } = step else { return None };
        let mut after = self.clone();
        after.takes(step, &Told::default());
        after.sandboxes.get(name).map(|sandbox| sandbox.files.shown())
    }
}
