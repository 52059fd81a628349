//! What a panic ends. In a process of its own, since it is that process that may end.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Command, Output},
};

const ROLE: &str = "SANDBAR_GUARD_TEST";

fn ended(role: &str) -> Output {
    let own = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let ran = Command::new(own).args(["--exact", "child", "--nocapture"]).env(ROLE, role).output();
    ran.unwrap_or_else(|error| panic!("{error}"))
}

/// The body of the processes that the other test starts; by itself it has no role.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    sandbar_engine::abort_on_panic();
    let tripped = sandbar_engine::guarded(|| -> u8 { panic!("over what a sandbox wrote") });
    assert_eq!(tripped, None);
    assert_eq!(sandbar_engine::guarded(|| 7), Some(7));
    eprintln!("still here");
    if role == "unguarded" {
        // Without the hook the process would go on without this thread.
        drop(std::thread::spawn(|| panic!("lost its footing")).join());
        eprintln!("went on");
    }
}

#[test]
fn a_guarded_panic_is_survived_and_any_other_ends_the_process() {
    let guarded = ended("guarded");
    let said = String::from_utf8_lossy(&guarded.stderr).into_owned();
    assert!(guarded.status.success() && said.contains("still here"), "{said}");
    let unguarded = ended("unguarded");
    let said = String::from_utf8_lossy(&unguarded.stderr).into_owned();
    assert!(said.contains("still here") && !said.contains("went on"), "{said}");
    assert_eq!(unguarded.status.signal(), Some(6), "{said}");
}
