//! Panics: a server that has lost its footing ends at once, because sandboxes survive it. The exception is code that
//! reads whatever a sandbox writes and is not ours: what it trips over must not end the server of all the others.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// From here on a panic ends the process, unless it is within [`guarded`].
pub fn abort_on_panic() {
    let tell = take_hook();
    set_hook(Box::new(move |panic| {
        tell(panic);
        if !GUARDED.get() {
            std::process::abort();
        }
    }));
}

/// None if it panicked: what it worked on is then to be thrown away.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.ok()
}
