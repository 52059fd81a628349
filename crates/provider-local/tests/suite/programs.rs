//! The host's programs where something is mounted below them, as `/usr/local` often is. In a mount namespace of its own, so
//! that nothing is mounted on the host.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use sandbar_api::Layer;
use sandbar_provider::{
    cases,
    suite::{self, Case, Outcome, Subject as _, same},
};

use crate::{Home, is_root, made, needs_root, said, spec};

/// The first argument of this program as the server in there.
pub(crate) const INSIDE: &str = "programs-inside";
const NOBODY: &str = "65534";
/// An empty directory of most hosts.
const PLACE: &str = "/usr/games";

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![what_is_mounted_below_the_hosts_programs_is_seen];
    for case in &mut cases {
        case.not_here =
            || needs_root().or_else(|| (!Path::new(PLACE).is_dir()).then(|| format!("this host has no {PLACE}")));
    }
    cases
}

const MOUNT: &str =
    "cd /usr/games && mount -t tmpfs -o mode=755 below . && cd /usr/games && mkdir deep && echo seen > seen &&
mount -t tmpfs -o mode=755 deeper deep && echo deep > deep/seen && : > file && mount --bind seen file && cd / &&
exec setpriv --reuid \"$1\" --regid \"$1\" --clear-groups \"$0\" programs-inside \"$2\"";

async fn what_is_mounted_below_the_hosts_programs_is_seen(home: &Home) -> Outcome {
    let text = |error: std::io::Error| error.to_string();
    for user in ["0", NOBODY] {
        let place = home.0.join(user);
        let program = made(&place)?.join("suite");
        std::fs::copy(std::env::current_exe().map_err(text)?, &program).map_err(text)?;
        let owner = user.parse().ok();
        std::os::unix::fs::chown(&place, owner, owner).map_err(text)?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", MOUNT]).arg(&program).arg(user).arg(&place);
        let told = unshare.output().map_err(text)?;
        std::fs::remove_dir_all(&place).map_err(text)?;
        let told = (told.status.success(), [told.stdout, told.stderr].concat());
        same(&format!("as {user}"), &(told.0, String::from_utf8_lossy(&told.1).as_ref()), &(true, ""))?;
    }
    Ok(())
}

/// In there, as root or as nobody.
pub(crate) fn inside(place: PathBuf) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(seen(&Home(place)))
}

async fn seen(home: &Home) -> Outcome {
    let spec = spec("below");
    let provider = home.open().await?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script = "cd /usr/games && cat seen deep/seen file; touch new deep/new file 2>/dev/null || echo refused
awk '$5 ~ \"^/usr\" { for (i = 6; $i != \"-\"; i++); print $5, $(i + 1) }' /proc/self/mountinfo | LC_ALL=C sort";
    let seen = suite::run(&guest, script).await?.output;
    let report = provider.inspect(&spec).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)?;
    let (files, mounts) = seen.split_once("refused\n").ok_or_else(|| format!("something was written: {seen}"))?;
    same("files", &files, &"seen\ndeep\nseen\n")?;
    let evidence = report.iter().find(|report| report.layer == Layer::Mounts).map_or("", |report| &report.evidence);
    let shares = evidence.contains("the host's own");
    if is_root() {
        let wanted = "/usr overlay\n/usr/games overlay\n/usr/games/deep overlay\n/usr/games/file tmpfs\n";
        same("mounts", &mounts, &wanted)?;
    }
    // The kernel lets an ordinary user have it in no other way, and that is said.
    same(evidence, &shares, &!is_root())
}
