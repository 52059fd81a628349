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

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt as _,
        process::{Command, Output},
    };

    const ROLE: &str = "SANDBAR_GUARD_TEST";

    /// In a process of its own, since it is that process that may end.
    fn ended(role: &str) -> std::io::Result<Output> {
        let name = concat!(module_path!(), "::child").split_once("::").map_or("", |(_, name)| name);
        Command::new(std::env::current_exe()?).args(["--exact", name, "--nocapture"]).env(ROLE, role).output()
    }

    /// The body of the processes that the other test starts; by itself it has no role.
    #[test]
    fn child() {
        let Ok(role) = std::env::var(ROLE) else { return };
        super::abort_on_panic();
        let tripped = super::guarded(|| -> u8 { panic!("over what a sandbox wrote") });
        assert_eq!(tripped, None);
        assert_eq!(super::guarded(|| 7), Some(7));
        eprintln!("still here");
        if role == "unguarded" {
            // Without the hook the process would go on without this thread.
            drop(std::thread::spawn(|| panic!("lost its footing")).join());
            eprintln!("went on");
        }
    }

    #[test]
    fn a_guarded_panic_is_survived_and_any_other_ends_the_process() -> std::io::Result<()> {
        let guarded = ended("guarded")?;
        let said = String::from_utf8_lossy(&guarded.stderr).into_owned();
        assert!(guarded.status.success() && said.contains("still here"), "{said}");
        let unguarded = ended("unguarded")?;
        let said = String::from_utf8_lossy(&unguarded.stderr).into_owned();
        assert!(said.contains("still here") && !said.contains("went on"), "{said}");
        assert_eq!(unguarded.status.signal(), Some(6), "{said}");
        Ok(())
    }
}
