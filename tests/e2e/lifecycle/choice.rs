//! What is tried next: verbs from a shuffled deck, so that none is missed, on things that mostly, but not always, are
//! fit for them.

use std::collections::BTreeSet;

use sandbar_api::SandboxState::{Failed, Paused, Ready, Stopped};

use crate::{
    lifecycle::model::{DIRECTORIES, Model, PATHS, Source, Step, Write},
    support::Dice,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];
/// So many live at once.
const MOST: usize = 8;
/// Of the 32 layers a provider stacks, so many are stood on.
const DEEPEST: u32 = 30;

/// Verbs, by how often each is in the deck.
const DECK: [(Verb, usize); 14] = [
    (Verb::Create, 3),
    (Verb::CreateFrom, 3),
    (Verb::Write, 8),
    (Verb::Run, 2),
    (Verb::Pause, 4),
    (Verb::Resume, 2),
    (Verb::Stop, 2),
    (Verb::Start, 2),
    (Verb::Delete, 3),
    (Verb::Snapshot, 3),
    (Verb::DeleteSnapshot, 2),
    (Verb::Fork, 3),
    (Verb::SetPool, 2),
    (Verb::Claim, 3),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    CreateFrom,
    Write,
    Run,
    Pause,
    Resume,
    Stop,
    Start,
    Delete,
    Snapshot,
    DeleteSnapshot,
    Fork,
    SetPool,
    Claim,
}

pub(crate) struct Chooser {
    pub(crate) dice: Dice,
    deck: Vec<Verb>,
    /// The templates to make sandboxes and pools of.
    templates: Vec<&'static str>,
    words: u32,
}

impl Chooser {
    pub(crate) fn new(dice: Dice, templates: Vec<&'static str>) -> Self {
        Self { dice, deck: vec![], templates, words: 0 }
    }

    /// Steps that can be taken at once.
    pub(crate) fn round(&mut self, model: &Model) -> Vec<Step> {
        let most = if self.dice.roll(3) == 0 { 3 } else { 1 };
        let (mut steps, mut touched): (Vec<Step>, BTreeSet<String>) = (vec![], BTreeSet::new());
        for _ in 0..most {
            let step = self.step(model);
            if touched.is_disjoint(&step.touches()) {
                touched.extend(step.touches());
                steps.push(step);
            }
        }
        steps
    }

    fn draw(&mut self) -> Verb {
        if self.deck.is_empty() {
            self.deck = DECK.iter().flat_map(|(verb, times)| std::iter::repeat_n(*verb, *times)).collect();
        }
        let at = self.dice.roll(self.deck.len() as u64) as usize;
        self.deck.swap_remove(at)
    }

    fn step(&mut self, model: &Model) -> Step {
        let (full, bare) = (model.sandboxes.len() >= MOST, model.snapshots.is_empty());
        let alone = !model.sandboxes.values().any(|sandbox| sandbox.state == Ready);
        // What cannot be done to anything is refused for long enough by those that miss their aim below.
        let verb = match self.draw() {
            Verb::Create | Verb::CreateFrom | Verb::Fork | Verb::Claim if full => Verb::Delete,
            Verb::CreateFrom | Verb::DeleteSnapshot if bare && !alone => Verb::Snapshot,
            Verb::Write | Verb::Run | Verb::Pause | Verb::Stop | Verb::Fork | Verb::Snapshot if alone => Verb::Create,
            verb => verb,
        };
        match verb {
            Verb::Create => Step::Create { name: self.free(model), source: Source::Template(self.template()) },
            Verb::CreateFrom => {
                Step::Create { name: self.free(model), source: Source::Snapshot(self.snapshot(model, true)) }
            }
            Verb::Claim => self.claim(model),
            Verb::Write => Step::Write { name: self.among(model, &[Ready]), writes: self.writes() },
            Verb::Run => Step::Run { name: self.among(model, &[Ready]) },
            Verb::Pause => Step::Pause { name: self.among(model, &[Ready]) },
            Verb::Resume => Step::Resume { name: self.among(model, &[Paused]) },
            Verb::Stop => Step::Stop { name: self.among(model, &[Ready, Paused]) },
            Verb::Start => Step::Start { name: self.among(model, &[Stopped, Failed]) },
            Verb::Delete => Step::Delete { name: self.among(model, &[Ready, Paused, Stopped, Failed]) },
            Verb::Snapshot => {
                let name = self.among(model, &[Ready, Paused, Stopped]);
                match self.is_deep(model, &name) {
                    true => Step::Delete { name },
                    false => Step::Snapshot { name, snapshot: self.snapshot(model, false) },
                }
            }
            Verb::DeleteSnapshot => Step::DeleteSnapshot { snapshot: self.snapshot(model, true) },
            Verb::Fork => {
                let name = self.among(model, &[Ready, Paused, Stopped]);
                let (prefix, count) = (NAMES[self.dice.roll(5) as usize].to_owned(), 1 + self.dice.roll(3) as u32);
                if self.is_deep(model, &name) { Step::Delete { name } } else { Step::Fork { name, prefix, count } }
            }
            Verb::SetPool => Step::SetPool { template: self.template(), size: self.dice.roll(4) as u32 },
        }
    }

    fn claim(&mut self, model: &Model) -> Step {
        let warm: Vec<_> = model.pools.iter().filter(|(_, size)| **size > 0).map(|(template, _)| *template).collect();
        if warm.is_empty() {
            return Step::SetPool { template: self.template(), size: 2 + self.dice.roll(2) as u32 };
        }
        let template = warm[self.dice.roll(warm.len() as u64) as usize];
        Step::Create { name: self.free(model), source: Source::Pool(template) }
    }

    fn is_deep(&self, model: &Model, name: &str) -> bool {
        model.sandboxes.get(name).is_some_and(|sandbox| sandbox.files.depth >= DEEPEST)
    }

    fn template(&mut self) -> &'static str {
        self.templates[self.dice.roll(self.templates.len() as u64) as usize]
    }

    /// One of those that are fit, or sometimes any name at all.
    fn pick(&mut self, fit: &[String], any: &[&str]) -> String {
        match fit.is_empty() || self.dice.roll(8) == 0 {
            true => any[self.dice.roll(any.len() as u64) as usize].to_owned(),
            false => fit[self.dice.roll(fit.len() as u64) as usize].clone(),
        }
    }

    fn among(&mut self, model: &Model, states: &[sandbar_api::SandboxState]) -> String {
        let fit = model.sandboxes.iter().filter(|(_, sandbox)| states.contains(&sandbox.state));
        let fit: Vec<_> = fit.map(|(name, _)| name.clone()).collect();
        let any: Vec<_> = NAMES.into_iter().chain(model.sandboxes.keys().map(String::as_str)).collect();
        self.pick(&fit, &any)
    }

    fn free(&mut self, model: &Model) -> String {
        let fit = NAMES.into_iter().filter(|name| !model.sandboxes.contains_key(*name));
        let fit: Vec<_> = fit.map(str::to_owned).collect();
        self.pick(&fit, &NAMES)
    }

    fn snapshot(&mut self, model: &Model, exists: bool) -> String {
        let fit = SNAPSHOTS.into_iter().filter(|name| model.snapshots.contains_key(*name) == exists);
        let fit: Vec<_> = fit.map(str::to_owned).collect();
        self.pick(&fit, &SNAPSHOTS)
    }

    fn writes(&mut self) -> Vec<Write> {
        (0..1 + self.dice.roll(3))
            .map(|_| {
                self.words += 1;
                let path = PATHS[self.dice.roll(4) as usize];
                match self.dice.roll(6) {
                    0 => Write::Remove(path),
                    1 => Write::Renew(DIRECTORIES[self.dice.roll(2) as usize]),
                    _ => Write::Append(path, format!("w{}.", self.words)),
                }
            })
            .collect()
    }
}
