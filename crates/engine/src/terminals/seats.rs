//! Who sits before a terminal: viewers, and among them at most one who controls it. In memory: seats end with the
//! connections that hold them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sandbar_api::{Code, Control, Problem, ProcessId};
use tokio::sync::watch;

use crate::Inner;

/// Viewers of one terminal.
pub(crate) const MOST_SEATS: usize = 256;

#[derive(Default)]
pub(super) struct Seats(Mutex<HashMap<ProcessId, Arc<watch::Sender<Table>>>>);

/// What everybody before a terminal shares.
#[derive(Default)]
pub(super) struct Table {
    seated: usize,
    last: u64,
    controller: Option<Controller>,
    /// Counts changes of the terminal's size, so that viewers look when there is one.
    pub(super) resized: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Controller {
    seat: u64,
    owner: String,
    writer: String,
}

/// One viewer's place; given up when dropped.
pub(super) struct Seat {
    inner: Arc<Inner>,
    process: ProcessId,
    table: Arc<watch::Sender<Table>>,
    id: u64,
    owner: String,
    writer: String,
}

impl Seats {
    fn tables(&self) -> MutexGuard<'_, HashMap<ProcessId, Arc<watch::Sender<Table>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The terminal has another size.
    pub(super) fn resized(&self, process: &ProcessId) {
        if let Some(table) = self.tables().get(process) {
            table.send_modify(|table| table.resized += 1);
        }
    }

    pub(super) fn sit(inner: &Arc<Inner>, process: &ProcessId, owner: &str, writer: &str) -> Result<Seat, Problem> {
        let mut tables = inner.terminals.seats.tables();
        let table = tables.entry(process.clone()).or_default();
        let mut id = None;
        table.send_if_modified(|table| {
            if table.seated < MOST_SEATS {
                table.seated += 1;
                table.last += 1;
                id = Some(table.last);
            }
            false
        });
        let id = id.ok_or_else(|| {
            Problem::new(
                Code::TooMany,
                format!("{MOST_SEATS} viewers are attached to the terminal, and no more may be."),
                "Let some of them detach, or look at its screen without attaching.",
            )
        })?;
        let (owner, writer) = (owner.to_owned(), writer.to_owned());
        Ok(Seat { inner: inner.clone(), process: process.clone(), table: table.clone(), id, owner, writer })
    }
}

impl Seat {
    pub(super) fn watch(&self) -> watch::Receiver<Table> {
        self.table.subscribe()
    }

    pub(super) fn controls(&self) -> bool {
        self.is_controller(&self.table.borrow())
    }

    fn is_controller(&self, table: &Table) -> bool {
        table.controller.as_ref().is_some_and(|controller| controller.seat == self.id)
    }

    /// Whether this seat controls, and who does.
    pub(super) fn control(&self, table: &Table) -> (bool, Option<String>) {
        (self.is_controller(table), table.controller.as_ref().map(|controller| controller.owner.clone()))
    }

    /// Whether it controls now.
    pub(super) fn ask(&self, control: Control) -> bool {
        let me = Controller { seat: self.id, owner: self.owner.clone(), writer: self.writer.clone() };
        let mut held = false;
        self.table.send_if_modified(|table| {
            let gets = match (control, &table.controller) {
                (Control::View, _) => false,
                (Control::Take, _) | (Control::Free, None) => true,
                // The same client again, whose former connection is dead and does not know it yet.
                (Control::Free, Some(now)) => now.owner == me.owner && now.writer == me.writer,
            };
            let changed = gets && !self.is_controller(table);
            if changed {
                table.controller = Some(me);
            }
            held = self.is_controller(table);
            changed
        });
        held
    }

    pub(super) fn release(&self) {
        self.table.send_if_modified(|table| {
            let held = self.is_controller(table);
            if held {
                table.controller = None;
            }
            held
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.release();
        let mut tables = self.inner.terminals.seats.tables();
        let mut empty = false;
        self.table.send_if_modified(|table| {
            table.seated = table.seated.saturating_sub(1);
            empty = table.seated == 0;
            false
        });
        if empty {
            tables.remove(&self.process);
        }
    }
}
