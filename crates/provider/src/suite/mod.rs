//! The tests every provider must pass, run by a program of its own: a provider may re-execute itself, which a test
//! harness with threads does not allow.

mod cases;
mod gate;
mod inside;
mod search;
mod skills;
mod terminal;

use std::{future::Future, pin::Pin, sync::Arc};

use crate::Provider;

pub use inside::{Ran, run};

/// Why a case failed, in words.
pub type Outcome = Result<(), String>;
pub type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Provider>, String>> + 'a>>;

/// A provider that can be opened again over the same sandboxes, as a restarted server does.
pub trait Subject {
    fn open(&self) -> Opening<'_>;

    /// Where what it makes is rightly another kind of machine. Everything else is demanded of it all the same.
    fn differs(&self) -> Differences {
        Differences::default()
    }
}

/// None, unless a provider says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Differences {
    /// It has the host name that its maker gives it, not the sandbox's.
    pub named_by_its_maker: bool,
    /// Besides loopback there are interfaces that lead nowhere.
    pub more_interfaces: bool,
    /// Its image, and the runtime that starts it, decide which directories are at its root.
    pub root_of_an_image: bool,
    /// Nothing of the server's host can be seen inside, so that whatever would show it is refused.
    pub no_host_directories: bool,
}

pub struct Case<S> {
    pub name: &'static str,
    pub run: for<'a> fn(&'a S) -> Running<'a>,
    /// Says why this host cannot run it; then it counts as not run, by name.
    pub not_here: fn() -> Option<String>,
}

#[macro_export]
macro_rules! cases {
    ($($function:ident),* $(,)?) => {
        vec![$($crate::suite::Case {
            name: stringify!($function),
            run: |subject| Box::pin($function(subject)),
            not_here: || None,
        }),*]
    };
}

/// The contract, for any provider.
pub fn contract<S: Subject>() -> Vec<Case<S>> {
    cases::all().into_iter().chain(search::all()).chain(skills::all()).chain(gate::all()).collect()
}

/// Fails the case with both values when they differ.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, want: &T) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("{what}: got {got:?}, want {want:?}")) }
}
