//! Real programs, unchanged, inside a sandbox: what people use must run under `standard` and `hardened`, and what the
//! fence refuses must be refused with words. Each program is a script in `programs/`. Without a harness: the launcher is
//! this very program.

mod deb;
mod refused;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use sandbar_api::{Profile, SandboxId};
use sandbar_provider::{
    Error, Provider, Spec,
    suite::{self, Case, Opening, Outcome, Ran, Running, Subject},
};
use sandbar_provider_local::{LAUNCHER_NAME, Lifetime, Local, launcher};

struct Home(PathBuf);

impl Subject for Home {
    fn open(&self) -> Opening<'_> {
        Box::pin(async {
            let local = Local::open(self.0.join("home/local"), Lifetime::Outlives).await;
            Ok(Arc::new(local.map_err(said)?) as Arc<dyn Provider>)
        })
    }
}

macro_rules! programs {
    ($($name:literal)*) => {
        vec![$(Case {
            name: $name,
            run: |home| program(home, $name, include_str!(concat!("programs/", $name, ".sh"))),
            not_here: || missing(include_str!(concat!("programs/", $name, ".sh"))),
        }),*]
    };
}

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == LAUNCHER_NAME) {
        launcher::main();
    }
    let home = Home(std::env::temp_dir().join(format!("sandbar-corpus-{}", std::process::id())));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let mut cases: Vec<Case<Home>> = programs![
        "bash" "busybox" "cmake" "coreutils" "curl" "find" "gcc" "git" "gxx" "java" "jq" "make" "node" "npm" "openssl"
        "perl" "python" "rust" "script" "sqlite" "ssh" "tar" "tmux" "vim" "zip"
    ];
    cases.extend(refused::cases());
    cases.extend(deb::cases());
    let code = runtime.block_on(suite::main(&home, cases));
    if let Err(error) = std::fs::remove_dir_all(&home.0) {
        panic!("something was left in {}: {error}", home.0.display());
    }
    code
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
