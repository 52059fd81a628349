//! Real programs, unchanged, inside a sandbox: what people use must run under `standard` and `hardened`, and what the
//! fence refuses must be refused with words. Each program is a script in `programs/`.

mod deb;
mod refused;

use std::path::Path;

use sandbar_api::{Profile, SandboxId};
use sandbar_provider::{
    Error, Spec,
    suite::{self, Case, Outcome, Ran, Running, Subject as _},
};

use crate::Home;

macro_rules! programs {
    ($($name:literal)*) => {
        vec![$(Case {
            name: $name,
            run: |home| program(home, $name, include_str!(concat!("programs/", $name, ".sh"))),
            not_here: || missing(include_str!(concat!("programs/", $name, ".sh"))),
        }),*]
    };
}

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = programs![
        "bash" "busybox" "cmake" "coreutils" "curl" "find" "gcc" "git" "gxx" "java" "jq" "make" "node" "npm" "openssl"
        "perl" "python" "rust" "script" "sqlite" "ssh" "tar" "tmux" "vim" "zip"
    ];
    cases.extend(refused::cases());
    cases.extend(deb::cases());
    cases
}

fn said(error: Error) -> String {
    format!("{error} ({error:?})")
}

fn spec(name: &str, profile: &str) -> Spec {
    let mut random = [0; 10];
    for (to, from) in random.iter_mut().zip(name.bytes().chain(profile.bytes())) {
        *to = from;
    }
    let layers = Profile::named(profile).map(|profile| profile.layers).unwrap_or_default();
    Spec { layers, ..Spec::standard(SandboxId::from_parts(3, random), "corpus") }
}

/// Runs a script with bash in a sandbox of its own; it stops at the first command that fails.
async fn inside(home: &Home, spec: &Spec, script: &str) -> Result<Ran, String> {
    let provider = home.open().await?;
    provider.create(spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let text = format!(
        "mkdir /workspace/work && cd /workspace/work && cat > ../script <<'SCRIPT'\n{script}\nSCRIPT\nexec bash -euo pipefail ../script"
    );
    let ran = suite::run(&guest, &text).await;
    provider.destroy(&spec.id).await.map_err(said)?;
    ran
}

/// Tight as `hardened` is, nothing of this is what it forbids.
fn program<'a>(home: &'a Home, name: &'static str, script: &'static str) -> Running<'a> {
    Box::pin(async move {
        for profile in ["standard", "hardened"] {
            let ran = inside(home, &spec(name, profile), script).await?;
            succeeded(&ran).map_err(|why| format!("under {profile} {why}"))?;
        }
        Ok(())
    })
}

fn succeeded(ran: &Ran) -> Outcome {
    if ran.code == 0 { Ok(()) } else { Err(format!("it ended with {}: {}", ran.code, ran.output.trim_end())) }
}

/// What a script needs and a sandbox of this host would not have.
fn missing(script: &str) -> Option<String> {
    let needs = script.lines().find_map(|line| line.strip_prefix("# needs: ")).unwrap_or_default();
    let absent: Vec<_> = needs.split(' ').filter(|program| !is_visible(program)).collect();
    (!absent.is_empty()).then(|| format!("this host has no {} below /usr", absent.join(", no ")))
}

/// Below `/usr` itself: a link that leads elsewhere leads nowhere inside.
fn is_visible(program: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/usr/sbin"]
        .iter()
        .filter_map(|directory| Path::new(directory).join(program).canonicalize().ok())
        .any(|found| found.starts_with("/usr"))
}
