//! What a visitor is shown and told while attached: who controls the terminal, whether the window is too small for it,
//! whether the server is away.

use std::time::Duration;

use sandbar_client::{AttachEvent, Standing, Typist};
use tokio::time::Instant;

use super::{
    Left, Manner, Visit,
    face::{Face, Stdout},
    keys::Command,
    typing::Told,
};
use crate::{exit::Failure, terminal};

/// How long the last keys are given to arrive when we leave.
pub(super) const FLUSH: Duration = Duration::from_secs(1);
/// A server that is away for less is not worth telling.
const BLINK: Duration = Duration::from_millis(300);
/// Longer than anybody waits.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) struct Watch<'a> {
    visit: &'a Visit<'a>,
    standing: Standing,
    /// Keys went nowhere, and that was told.
    unheard: bool,
    told_small: bool,
    away_since: Option<Instant>,
    told_away: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(visit: &'a Visit<'a>, standing: Standing) -> Self {
        Self { visit, standing, unheard: false, told_small: false, away_since: None, told_away: false }
    }

    pub(super) fn tells_of_absence(&self) -> Instant {
        match self.away_since {
            Some(since) if !self.told_away => since + BLINK,
            _ => Instant::now() + NEVER,
        }
    }

    pub(super) async fn tell_of_absence(&mut self, face: &mut Face) -> Result<(), Failure> {
        self.told_away = true;
        face.notice("waiting for the server…").await
    }

    pub(super) async fn see(&mut self, event: AttachEvent, face: &mut Face) -> Result<Option<Left>, Failure> {
        let signal = match event {
            AttachEvent::Exit(process) => return Ok(Some(Left::Exit(process))),
            AttachEvent::Output { data, .. } => face.output(&data).await?,
            AttachEvent::Screen { size, data, .. } => {
                self.standing.size = size;
                let signal = face.paint(&data).await?;
                if !self.standing.held {
                    let small = self.smallness(face).map(|small| format!("; {small}")).unwrap_or_default();
                    face.notice(&(self.control() + &small)).await?;
                }
                signal
            }
            AttachEvent::Resized { size, .. } => {
                self.standing.size = size;
                if let Some(small) = self.smallness(face) {
                    face.notice(&small).await?;
                }
                None
            }
            AttachEvent::Control { held, controller } => {
                let changed = (held, &controller) != (self.standing.held, &self.standing.controller);
                (self.standing.held, self.standing.controller) = (held, controller);
                self.unheard = false;
                if changed {
                    face.notice(&self.control()).await?;
                }
                None
            }
            AttachEvent::Skipped { from, to } => {
                face.notice(&format!(
                    "{} bytes of output were dropped before they were shown",
                    to.saturating_sub(from)
                ))
                .await?;
                None
            }
            AttachEvent::Refused(problem) => {
                face.notice(&problem.detail).await?;
                None
            }
            AttachEvent::Reconnecting => {
                self.away_since = Some(Instant::now());
                None
            }
            AttachEvent::Reconnected(standing) => {
                self.reconnected(standing, face).await?;
                None
            }
            AttachEvent::Lost { bytes } => {
                let told = format!("of what you typed last, {bytes} bytes may not have arrived; {}", self.control());
                face.notice(&told).await?;
                None
            }
            _ => None,
        };
        match (signal, self.visit.manner) {
            (None, _) => Ok(None),
            (Some(name), Manner::Ours) => {
                self.visit.running.signal(name).await;
                Ok(None)
            }
            // Nobody reads us any more, which is nothing to the process.
            (Some(_), Manner::Visit) => Ok(Some(Left::Detached)),
        }
    }

    async fn reconnected(&mut self, standing: Standing, face: &mut Face) -> Result<(), Failure> {
        let (was_held, told_away) = (self.standing.held, self.told_away);
        self.standing = standing;
        (self.away_since, self.told_away) = (None, false);
        if was_held && !self.standing.held {
            face.notice(&self.control()).await
        } else if told_away {
            face.notice("the server is there again").await
        } else {
            Ok(())
        }
    }

    pub(super) async fn obey(&mut self, told: Told, typist: &Typist, face: &mut Face) -> Result<Option<Left>, Failure> {
        match told {
            Told::Command(Command::Detach) => return Ok(Some(Left::Detached)),
            Told::Command(Command::Take) if self.standing.held => face.notice(&self.control()).await?,
            Told::Command(Command::Take) => typist.take(),
            Told::Command(Command::Redraw) => typist.redraw(),
            Told::Command(Command::Help) => face.notice(&self.help()).await?,
            Told::Unheard if self.unheard => {}
            // It has ended, which is about to be told.
            Told::Unheard if self.visit.manner == Manner::Ours && self.standing.controller.is_none() => {}
            Told::Unheard => {
                self.unheard = true;
                face.bell().await?;
                face.notice(&format!("not typed: {}", self.control())).await?;
            }
            Told::Unreadable(cause) => face.notice(&format!("standard input cannot be read: {cause}")).await?,
        }
        Ok(None)
    }

    /// Who controls it, and how to change that.
    fn control(&self) -> String {
        let Standing { held, controller, .. } = &self.standing;
        let who = match (held, controller) {
            (true, _) => return "you have control".to_owned(),
            (false, Some(who)) => format!("you look on: {who} has control"),
            (false, None) => "you look on: nobody has control".to_owned(),
        };
        match self.visit.chord.of('t') {
            Some(keys) => format!("{who}; {keys} takes over"),
            None => who,
        }
    }

    fn help(&self) -> String {
        let chord = &self.visit.chord;
        let keys = |command, does| chord.of(command).map(|keys| format!("{keys} {does}"));
        let parts = [Some(format!("{chord} detaches")), keys('t', "takes over"), keys('r', "redraws")];
        let parts: Vec<_> = parts.into_iter().flatten().chain([self.control()]).collect();
        parts.join(" · ")
    }

    /// Told once: that a viewer's window cannot show all of it.
    fn smallness(&mut self, face: &Face) -> Option<String> {
        let (ours, its) = (terminal::size(), self.standing.size);
        let shown = face.kind() == Stdout::Stream || (ours.cols >= its.cols && ours.rows >= its.rows);
        if self.told_small || self.standing.held || shown {
            return None;
        }
        self.told_small = true;
        Some(format!("it has {}×{}, your window is smaller: what you see may be torn", its.cols, its.rows))
    }
}
