//! `gateway.toml` and `sets.toml` of the home: upstreams, models, prices, aliases, addresses; named sets of rules. Read again
//! when they change, looked at no more than once a second and only when something is asked.

pub(crate) mod document;
pub(crate) mod file;
mod network;
mod sets;
pub(crate) mod sizes;
mod upstreams;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sandbar_api::SetBudget;
use sandbar_gateway::{Settings, llm::Catalogue};
use sandbar_policy::Sets;

pub(crate) use self::document::unknown;
use self::{
    document::{Document, Mistake},
    file::Stamp,
};
use crate::OpenError;

const GATEWAY: &str = "gateway.toml";
const SETS: &str = "sets.toml";
pub(crate) const LARGEST: u64 = 1 << 20;
const LOOK: Duration = Duration::from_secs(1);

/// What was read last and could be used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    /// Rises with every change that could be used.
    pub(crate) generation: u64,
    pub(crate) sets: Sets,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) settings: Settings,
    /// Of sessions that begin without a session above them, where neither request nor template says otherwise.
    pub(crate) budget: SetBudget,
    /// What is wrong with the files now, each naming file, line, cause and fix.
    pub(crate) errors: Vec<String>,
}

pub(crate) struct Config {
    home: PathBuf,
    loaded: RwLock<Arc<Loaded>>,
    /// When to look next, in milliseconds since it was opened.
    next_look: AtomicU64,
    opened: Instant,
    seen: Mutex<Seen>,
}

/// How the files were when they were read.
#[derive(Default)]
struct Seen {
    stamps: Vec<Stamp>,
    roots: Option<PathBuf>,
    texts: Option<Texts>,
}

#[derive(PartialEq)]
struct Texts {
    gateway: String,
    sets: String,
    roots: Vec<u8>,
}

impl Config {
    /// Files that are not there are empty; what is wrong with them is an error of the start: fail closed.
    pub(crate) fn open(home: &Path) -> Result<Self, OpenError> {
        let config = Self {
            home: home.to_owned(),
            loaded: RwLock::default(),
            next_look: AtomicU64::new(0),
            opened: Instant::now(),
            seen: Mutex::default(),
        };
        let loaded = config.current();
        if loaded.errors.is_empty() { Ok(config) } else { Err(OpenError::Config(loaded.errors.clone())) }
    }

    /// As the files are now. A change for the worse keeps what was read before, and is told in `errors` and the log.
    pub(crate) fn current(&self) -> Arc<Loaded> {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = self.next_look.load(Ordering::Relaxed);
        let next = now.saturating_add(LOOK.as_millis() as u64);
        // One of those who come at the same time looks; the others take what there is.
        if now >= due && self.next_look.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.look();
        }
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    // On the calling thread: three small files at most, and only when they changed.
    fn look(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.stamps(seen.roots.as_deref());
        if stamps == seen.stamps {
            return;
        }
        let read = self.read();
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(Read { texts, sets, gateway: Gateway { catalogue, settings, roots, budget } }) => {
                // Other roots: what was seen before they were read says nothing about them.
                seen.stamps = if roots == seen.roots { stamps } else { Vec::new() };
                seen.roots = roots;
                let changed = seen.texts.as_ref() != Some(&texts);
                if changed || !loaded.errors.is_empty() {
                    let generation = loaded.generation + u64::from(changed);
                    let catalogue = Arc::new(catalogue);
                    *loaded = Arc::new(Loaded { generation, sets, catalogue, settings, budget, errors: Vec::new() });
                }
                seen.texts = Some(texts);
            }
            Err(errors) => {
                // Read again next time: what has to be corrected may be a file that is not stamped.
                seen.stamps = Vec::new();
                if loaded.errors != errors {
                    for error in &errors {
                        tracing::warn!("{error} What was read before holds.");
                    }
                    *loaded = Arc::new(Loaded { errors, ..Loaded::clone(&loaded) });
                }
            }
        }
    }

    fn stamps(&self, roots: Option<&Path>) -> Vec<Stamp> {
        let mut stamps = vec![Stamp::of(&self.home.join(GATEWAY)), Stamp::of(&self.home.join(SETS))];
        stamps.extend(roots.map(Stamp::of));
        stamps
    }

    /// With other roots: what was seen before they were read says nothing about them.
    fn read(&self) -> Result<Read, Vec<String>> {
        let (gateway, sets) = (self.home.join(GATEWAY), self.home.join(SETS));
        let text = |path: &Path| match file::read(path, LARGEST) {
            Ok(text) => Ok(text.unwrap_or_default()),
            Err(cause) => Err(vec![told(path, &Mistake { line: None, cause: format!("it cannot be read: {cause}") })]),
        };
        let told_all = |path: &Path, mistakes: Vec<Mistake>| mistakes.iter().map(|bad| told(path, bad)).collect();
        let built_in = sets::built_in().map_err(|bad| told_all(Path::new("(built-in) sets.toml"), bad));
        let of_gateway = text(&gateway).and_then(|text| {
            // The file may be a link, as in a private home: what it names lies beside the file itself.
            let beside = gateway.canonicalize().ok().and_then(|file| Some(file.parent()?.to_owned()));
            let beside = beside.unwrap_or_else(|| self.home.clone());
            let read = parse(&text, &beside).map_err(|bad| told_all(&gateway, bad))?;
            Ok((text, read))
        });
        let of_sets = text(&sets).and_then(|text| {
            let read = sets::read(&text).map_err(|bad| told_all(&sets, bad))?;
            Ok((text, read))
        });
        match (built_in, of_gateway, of_sets) {
            (Ok(mut all), Ok((text, gateway)), Ok((sets, own))) => {
                all.extend(own);
                let texts = Texts { gateway: text, sets, roots: gateway.settings.extra_roots.clone() };
                Ok(Read { texts, sets: all, gateway })
            }
            (built_in, gateway, sets) => {
                let errors: [Option<Vec<String>>; 3] = [built_in.err(), gateway.err(), sets.err()];
                Err(errors.into_iter().flatten().flatten().collect())
            }
        }
    }
}

struct Read {
    texts: Texts,
    sets: Sets,
    gateway: Gateway,
}

/// What `gateway.toml` says.
struct Gateway {
    catalogue: Catalogue,
    settings: Settings,
    /// The file of roots that the settings depend on.
    roots: Option<PathBuf>,
    budget: SetBudget,
}

pub(crate) fn told(path: &Path, mistake: &Mistake) -> String {
    let line = mistake.line.map(|line| format!(":{line}")).unwrap_or_default();
    let end = if mistake.cause.ends_with('?') { "" } else { "." };
    format!("{}{line}: {}{end}", path.display(), mistake.cause)
}

fn parse(text: &str, home: &Path) -> Result<Gateway, Vec<Mistake>> {
    let document = Document::read(text).map_err(|mistake| vec![mistake])?;
    let (whole, mut mistakes) = (document.whole(), Vec::new());
    mistakes.extend(whole.only(&["network", "upstream", "model", "alias", "budget"]).err());
    let (settings, roots) = network::read(&whole, home, &mut mistakes);
    let catalogue = upstreams::read(&whole, &mut mistakes);
    let budget = whole.field("budget").map(|field| sizes::budget(&field)).transpose().unwrap_or_else(|mistake| {
        mistakes.push(mistake);
        None
    });
    mistakes.sort_by_key(|mistake| mistake.line);
    match mistakes.is_empty() {
        true => Ok(Gateway { catalogue, settings, roots, budget: budget.unwrap_or_default() }),
        false => Err(mistakes),
    }
}

#[cfg(test)]
mod tests;
