//! What a visitor is shown and told while attached: who controls the terminal, whether the window is too small for it,
//! whether the server is away.

use std::time::Duration;

use sandbar_client::{AttachEvent, Standing, Typist};
use tokio::time::Instant;

use super::{Left, Manner, Visit, face::Face, keys::Command, typing::Told};
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
    /// A screen is on its way.
    awaits_screen: bool,
    away_since: Option<Instant>,
    told_away: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(visit: &'a Visit<'a>, standing: Standing, awaits_screen: bool) -> Self {
        Self { visit, standing, unheard: false, told_small: false, awaits_screen, away_since: None, told_away: false }
    }

    /// A window too small for the output begins to show a part of the screen, and for that needs one. Not while the
    /// terminal is about to get our size.
    pub(super) fn look_again(&mut self, typist: &Typist, face: &Face) {
        let shown = face.shows_part() || face.holds(self.standing.size);
        if !shown && !self.standing.held && !self.awaits_screen {
            self.awaits_screen = true;
            typist.redraw();
        }
    }

    /// Our window has another size.
    pub(super) async fn fit(&mut self, typist: &Typist, face: &mut Face) -> Result<(), Failure> {
        face.fit().await?;
        self.look_again(typist, face);
        Ok(())
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

    pub(super) async fn see(
        &mut self,
        event: AttachEvent,
        typist: &Typist,
        face: &mut Face,
    ) -> Result<Option<Left>, Failure> {
        let signal = match event {
            AttachEvent::Exit(process) => return Ok(Some(Left::Exit(process))),
            AttachEvent::Output { data, .. } => face.output(&data).await?,
            AttachEvent::Screen { size, data, .. } => {
                let signal = face.paint(size, &data).await?;
                if std::mem::take(&mut self.awaits_screen) {
                    // What was told first holds, should it have changed while the screen was painted.
                    face.resized(self.standing.size).await?;
                    self.look_again(typist, face);
                } else {
                    self.standing.size = size;
                }
                if !self.standing.held {
                    let told = self.smallness(face).unwrap_or_else(|| self.control());
                    face.notice(&told).await?;
                }
                signal
            }
            AttachEvent::Resized { size, .. } => {
                self.standing.size = size;
                face.resized(size).await?;
                self.look_again(typist, face);
                None
            }
            AttachEvent::Control { held, controller } => {
                let changed = (held, &controller) != (self.standing.held, &self.standing.controller);
                (self.standing.held, self.standing.controller) = (held, controller);
                self.unheard = false;
                if changed {
                    face.notice(&self.control()).await?;
                }
                self.look_again(typist, face);
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
                self.look_again(typist, face);
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
        face.resized(self.standing.size).await?;
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
            Told::Command(Command::Redraw) => {
                self.awaits_screen = true;
                typist.redraw();
            }
            Told::Command(Command::Help) => face.notice(&self.help()).await?,
            Told::Unheard if self.unheard => {}
            // It has ended, which is about to be told.
            Told::Unheard if self.visit.manner == Manner::Ours && self.standing.controller.is_none() => {}
            Told::Unheard => {
                self.unheard = true;
                face.bell().await?;
                face.notice(&format!("not typed: {}", self.takeover())).await?;
            }
            Told::Unreadable(cause) => face.notice(&format!("standard input cannot be read: {cause}")).await?,
        }
        Ok(None)
    }

    fn control(&self) -> String {
        if self.standing.held { "you have control".to_owned() } else { format!("you look on: {}", self.takeover()) }
    }

    /// Who controls it, and how to change that.
    fn takeover(&self) -> String {
        match self.visit.chord.of('t') {
            Some(keys) => format!("{}; {keys} takes over", self.controller()),
            None => self.controller(),
        }
    }

    fn controller(&self) -> String {
        format!("{} has control", self.standing.controller.as_deref().map_or("nobody", named))
    }

    fn help(&self) -> String {
        let chord = &self.visit.chord;
        let keys = |command, does| chord.of(command).map(|keys| format!("{keys} {does}"));
        let parts = [Some(format!("{chord} detaches")), keys('t', "takes over"), keys('r', "redraws")];
        let parts: Vec<_> = parts.into_iter().flatten().chain([self.control()]).collect();
        parts.join(" · ")
    }

    /// Told once: that a viewer's window does not show all of it.
    fn smallness(&mut self, face: &Face) -> Option<String> {
        if self.told_small || !face.shows_part() {
            return None;
        }
        self.told_small = true;
        let (its, ours) = (self.standing.size, terminal::size());
        let sizes = format!("the terminal is {}x{}, this window {}x{}", its.cols, its.rows, ours.cols, ours.rows);
        let told = format!("you look on: {}; {sizes}: you see a part", self.controller());
        Some(match self.visit.chord.of('t') {
            Some(keys) => format!("{told}; {keys} takes control and fits it"),
            None => told,
        })
    }
}

/// A caller as people are told of one. Whoever comes by the server's socket is known by nothing else.
fn named(controller: &str) -> &str {
    match controller {
        "socket" => "somebody at the server (socket)",
        token => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_named_for_people() {
        assert_eq!(named("socket"), "somebody at the server (socket)");
        assert_eq!(named("token:tok-1"), "token:tok-1");
    }
}
