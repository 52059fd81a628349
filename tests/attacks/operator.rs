//! Escape through the operator: what `sandbar cp` brings out of a sandbox, and what the command line shows of it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    files::is_set_user_id,
    races::race,
    stage::{SECRET, Stage, Target},
    support::Outcome,
    terminals::obeyed,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, control| Attack::act(Class::Files, name, act, Control::Act("by a cp that trusts it", control));
    vec![
        doing("copy_of_a_link_out", act!(link_out), act!(trusted_link_out)),
        doing("copy_over_a_link", act!(over_link), act!(trusted_over_link)),
        doing("copy_over_a_repository", act!(over_repository), act!(trusted_over_repository)),
        doing("copy_during_an_exchange", act!(exchanged), act!(trusted_exchange)),
        doing("copy_of_names_like_flags", act!(flags), act!(trusted_flags)),
        doing("copy_of_a_pipe", act!(pipe), act!(trusted_pipe)),
        Attack::act(
            Class::Terminals,
            "escape_sequences_in_copied_names",
            act!(sequences),
            Control::Act("by a ls that trusts it", act!(trusted_sequences)),
        ),
    ]
}

/// `sandbar cp` of a place in the workspace, which must not hang.
fn cp(stage: &Stage, target: &Target, from: &str, to: &Path) -> Outcome<Output> {
    let copy = stage.server.command(&["cp", &format!("{}:/workspace/{from}", target.id)]);
    let mut command = Command::new("timeout");
    command.arg("20").arg(copy.get_program()).args(copy.get_args()).arg(to);
    command.env("SANDBAR_HOME", stage.server.home.path()).env("NO_COLOR", "1");
    let ran = command.output()?;
    if ran.status.code() == Some(124) { Err(format!("cp of {from} hangs").into()) } else { Ok(ran) }
}

async fn prepare(stage: &Stage, target: &Target, name: &str, script: &str) -> Outcome<PathBuf> {
    let ran = stage.sh(target, &format!("rm -rf {name}; mkdir {name} && cd {name} && {script}")).await?;
    if ran.exit.code != 0 {
        return Err(ran.stderr.into());
    }
    stage.directory("copied")
}

/// A link in what was copied, by which the next reader of the copy would read the host.
async fn link_out(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = format!("echo own > file; ln -s {} out", stage.secret().display());
    let to = prepare(stage, target, "linked", &script).await?;
    cp(stage, target, "linked", &to)?;
    Ok(followed(&to.join("linked")))
}

fn followed(copy: &Path) -> Finding {
    match fs::read_to_string(copy.join("out")) {
        Ok(text) if text == SECRET => Finding::escaped("the copy leads to the host's file"),
        other => Finding::contained(format!("{other:?}, the rest was copied: {}", copy.join("file").exists())),
    }
}

async fn trusted_link_out(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = stage.directory("copied")?;
    Command::new("cp").arg("-r").arg(target.shared.join("linked")).arg(&to).status()?;
    Ok(followed(&to.join("linked")))
}

/// What an earlier copy left must not be written through.
async fn over_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = prepare(stage, target, "over", "echo attack > file").await?;
    let outside = aimed(stage, &to)?;
    cp(stage, target, "over/.", &to)?;
    cp(stage, target, "over/file", &to)?;
    Ok(written(&outside))
}

fn aimed(stage: &Stage, to: &Path) -> Outcome<PathBuf> {
    let outside = stage.directory("outside")?.join("file");
    fs::write(&outside, SECRET)?;
    symlink(&outside, to.join("file"))?;
    Ok(outside)
}

fn written(outside: &Path) -> Finding {
    match fs::read_to_string(outside) {
        Ok(text) if text == SECRET => Finding::contained("the host's file is as it was"),
        other => Finding::escaped(format!("the host's file says {other:?}")),
    }
}

async fn trusted_over_link(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = stage.directory("copied")?;
    let outside = aimed(stage, &to)?;
    Command::new("cp").arg(target.shared.join("over/file")).arg(&to).status()?;
    Ok(written(&outside))
}

/// Settings and hooks of a repository run programs on the host, as soon as somebody works in it.
async fn over_repository(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let hooks = "mkdir -p .git/hooks inner/.git/hooks && for at in . inner; do \
                 echo attack > $at/.git/config; echo attack > $at/.git/hooks/pre-commit; done";
    let (above, below) = (prepare(stage, target, "repository", hooks).await?, stage.directory("copied")?);
    // In the directory itself, and further down, where it is found on the way.
    let (own, inner) = (owned(&above)?, owned(&below.join("inner"))?);
    cp(stage, target, "repository/.", &above)?;
    cp(stage, target, "repository/.git/config", &own.join("config"))?;
    cp(stage, target, "repository/.", &below)?;
    Ok(changed(&[own, inner]))
}

fn owned(directory: &Path) -> Outcome<PathBuf> {
    let git = directory.join(".git");
    fs::create_dir_all(&git)?;
    fs::write(git.join("config"), SECRET)?;
    Ok(git)
}

fn changed(repositories: &[PathBuf]) -> Finding {
    let ours = |git: &&PathBuf| {
        fs::read_to_string(git.join("config")).is_ok_and(|text| text == SECRET) && !git.join("hooks").exists()
    };
    match repositories.iter().find(|git| !ours(git)) {
        None => Finding::contained("the host's repositories are as they were"),
        Some(git) => Finding::escaped(format!("{} was changed", git.display())),
    }
}

async fn trusted_over_repository(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = stage.directory("copied")?;
    let own = owned(&to)?;
    Command::new("cp").arg("-r").arg(target.shared.join("repository/.")).arg(&to).status()?;
    Ok(changed(&[own]))
}

const COPIES: usize = 8;

async fn exchanged(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let name = race.place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut hit = false;
    for _ in 0..COPIES {
        let to = stage.directory("copied")?;
        cp(stage, target, &name, &to)?;
        hit |= has_secret(&to.join(&name));
    }
    hit |= !race.outside.join("file").exists();
    race.stop(stage, target).await?;
    Ok(if hit {
        Finding::escaped("the host's file was copied")
    } else {
        Finding::contained(format!("{COPIES} copies"))
    })
}

/// By whichever name the exchange left it.
fn has_secret(copy: &Path) -> bool {
    ["a", "b"].iter().any(|name| fs::read_to_string(copy.join(name).join("file")).is_ok_and(|text| text == SECRET))
}

async fn trusted_exchange(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let mut hit = false;
    for _ in 0..10 * COPIES {
        let to = stage.directory("copied")?;
        Command::new("cp").arg("-rL").arg(&race.place).arg(&to).stderr(std::process::Stdio::null()).status()?;
        hit = has_secret(&to.join(race.place.file_name().unwrap_or_default()));
        if hit {
            break;
        }
    }
    race.stop(stage, target).await?;
    Ok(if hit { Finding::escaped("the host's file was copied") } else { Finding::contained("it was not") })
}

/// A file whose name is an option of the program that handles it next.
async fn flags(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = prepare(stage, target, "flags", "touch ./--help ./-rf ./--target-directory=x").await?;
    let ran = cp(stage, target, "flags/.", &to)?;
    let copied = to.join("--help").exists() && to.join("-rf").exists();
    let text = String::from_utf8_lossy(&ran.stdout);
    Ok(if copied && !text.contains("Usage") {
        Finding::contained("they are files")
    } else {
        Finding::escaped(format!("{ran:?}"))
    })
}

async fn trusted_flags(_: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = Command::new("sh").args(["-c", "cp *"]).current_dir(target.shared.join("flags")).output()?;
    let text = String::from_utf8_lossy(&ran.stdout);
    Ok(if text.contains("Usage") {
        Finding::escaped("cp obeyed --help")
    } else {
        Finding::contained(format!("{ran:?}"))
    })
}

async fn pipe(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = prepare(stage, target, "pipes", "mkfifo pipe; echo x > file").await?;
    let ran = cp(stage, target, "pipes/.", &to)?;
    let made = to.join("pipe").exists() || is_set_user_id(&to.join("file"));
    Ok(if made {
        Finding::escaped("a pipe was made")
    } else {
        Finding::contained(format!("left out, exit {:?}", ran.status.code()))
    })
}

async fn trusted_pipe(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = stage.directory("copied")?;
    Command::new("cp").arg("-r").arg(target.shared.join("pipes/pipe")).arg(&to).status()?;
    Ok(if to.join("pipe").exists() { Finding::escaped("a pipe was made") } else { Finding::contained("no pipe") })
}

const NAMED: &str =
    "ln -s /etc/passwd \"$(printf 'a\\033]0;owned\\007\\033[2Jb')\"; mkfifo \"$(printf 'p\\033[2J')\"; touch plain";

async fn sequences(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let to = prepare(stage, target, "named", NAMED).await?;
    let ran = cp(stage, target, "named", &to)?;
    let all = [ran.stdout, ran.stderr].concat();
    let text = String::from_utf8_lossy(&all).escape_debug().take(120).collect::<String>();
    Ok(if obeyed(&all) { Finding::escaped(text) } else { Finding::contained(text) })
}

async fn trusted_sequences(_: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = Command::new("ls").arg("--show-control-chars").arg(target.shared.join("named")).output()?;
    Ok(if obeyed(&ran.stdout) {
        Finding::escaped("ls wrote them as they are")
    } else {
        Finding::contained("ls wrote none")
    })
}
