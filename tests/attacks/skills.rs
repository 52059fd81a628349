//! The template's skills, a directory of the host's: nothing inside may change it, or get through it to the host.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    process::Command,
};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{SECRET, Stage, Target, UNSHARED},
    support::Outcome,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Files, name, act, control);
    vec![
        doing("change_of_skills", act!(change), Control::Act("in the workspace", act!(change_of_workspace))),
        doing("change_of_skills", act!(change), Control::Act("in the workspace", act!(change_of_workspace))).by_root(),
        doing("remount_of_skills", act!(remount), Control::Act("without a fence", act!(remount_unfenced)))
            .on(&["standard", "hardened", "open"]),
        doing("remount_of_skills", act!(remount), Control::Act("without a fence", act!(remount_unfenced)))
            .by_root()
            .on(&["standard", "open"]),
        doing("way_out_by_skills", act!(way_out), Control::Act("on the host", act!(way_out_on_host))),
        doing("private_skill", act!(private), Control::Act("if everybody may read it", act!(public))),
        doing("private_skill", act!(private), Control::Act("if everybody may read it", act!(public))).by_root(),
        doing("skills_swapped_for_a_link", act!(swapped), Control::Act("unchanged", act!(not_swapped))),
    ]
}

/// A sandbox with skills: one file, and links that lead to the host's secret where they are followed there.
struct Skilled {
    target: Target,
    place: PathBuf,
}

impl Skilled {
    async fn make(stage: &Stage, target: &Target, private: Option<u32>) -> Outcome<Self> {
        let place = stage.directory("skills")?;
        fs::write(place.join("SKILL.md"), "a skill\n")?;
        // Wide open, so that nothing but the mount stands before a change.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777))?;
        fs::set_permissions(place.join("SKILL.md"), fs::Permissions::from_mode(0o666))?;
        symlink(stage.secret(), place.join("link"))?;
        symlink("..", place.join("up"))?;
        if let Some(mode) = private {
            fs::write(place.join("private"), SECRET)?;
            fs::set_permissions(place.join("private"), fs::Permissions::from_mode(mode))?;
        }
        let own = fs::read_to_string(
            stage.server.home.path().join("templates").join(&target.template).with_extension("toml"),
        )?;
        let text = format!("skills = \"{}\"\n{own}", place.display());
        let target = stage.fresh(target.profile, &text).await?;
        Ok(Self { target, place })
    }

    /// Whether the host still has what it had.
    fn is_whole(&self) -> Outcome<bool> {
        Ok(fs::read_to_string(self.place.join("SKILL.md"))? == "a skill\n" && fs::read_dir(&self.place)?.count() == 3)
    }
}

/// In a directory with a file `SKILL.md` that everybody may write.
const CHANGE: &str = "cd \"$1\" || exit
for way in 'touch new' 'mkdir d' 'mv SKILL.md other' 'truncate -s 0 SKILL.md' 'chmod 777 SKILL.md' 'ln SKILL.md linked' 'rm SKILL.md' 'touch -d 1999-01-01 .'; do
  $way 2>/dev/null && { echo \"escaped: $way\"; exit; }
done
(echo x >> SKILL.md) 2>/dev/null && echo escaped: written || echo contained: read-only";

async fn change(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let skilled = Skilled::make(stage, target, None).await?;
    let said = stage.exec(&skilled.target, &["sh", "-c", CHANGE, "sh", "/skills"]).await?.stdout;
    let whole = skilled.is_whole()?;
    stage.delete(&skilled.target).await?;
    match Finding::parse(&said) {
        Some(Finding::Contained(_)) if !whole => Ok(Finding::escaped("the host's directory has changed")),
        found => found.ok_or_else(|| format!("no verdict: {said}").into()),
    }
}

async fn change_of_workspace(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let place = target.shared.join(format!("like-skills-{}", stage.number()));
    fs::create_dir(&place)?;
    fs::write(place.join("SKILL.md"), "a skill\n")?;
    for path in [place.clone(), place.join("SKILL.md")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    }
    let inside = format!("/workspace/{}", place.file_name().unwrap_or_default().to_string_lossy());
    let said = stage.exec(target, &["sh", "-c", CHANGE, "sh", &inside]).await?.stdout;
    Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}").into())
}

/// A directory that is mounted read-only, made writable again.
const REMOUNT: &str = "PATH=$PATH:/usr/sbin:/sbin
for way in 'mount -o remount,bind,rw' 'mount -o remount,rw' umount 'umount -l'; do
  $way \"$1\" 2>/dev/null && (echo x >> \"$1/SKILL.md\") 2>/dev/null && { echo \"escaped: $way\"; exit; }
done
unshare --user --map-root-user --mount sh -c 'mount -o remount,bind,rw \"$1\" && echo x >> \"$1/SKILL.md\"' sh \"$1\" 2>/dev/null && echo escaped: in namespaces of its own || echo contained: refused";

async fn remount(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let skilled = Skilled::make(stage, target, None).await?;
    let said = stage.exec(&skilled.target, &["sh", "-c", REMOUNT, "sh", "/skills"]).await?.stdout;
    let whole = skilled.is_whole()?;
    stage.delete(&skilled.target).await?;
    // Root of an `open` sandbox may unmount it and then writes to what is below, which is the sandbox's own.
    match Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}"))? {
        _ if !whole => Ok(Finding::escaped("the host's directory has changed")),
        Finding::Escaped(way) => Ok(Finding::contained(format!("{way} reached the sandbox's own files alone"))),
        found => Ok(found),
    }
}

async fn remount_unfenced(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let place = stage.directory("remounted")?;
    fs::write(place.join("SKILL.md"), "a skill\n")?;
    let script = format!(
        "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && ! touch \"$1/new\" 2>/dev/null || exit\n{REMOUNT}"
    );
    let ran = Command::new(UNSHARED[0]).args(&UNSHARED[1..]).args(["sh", "-c", &script, "sh"]).arg(&place).output()?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}{}", String::from_utf8_lossy(&ran.stderr)).into())
}

/// By the parent directories, and by links that mean something on the host.
const WAY_OUT: &str = "cat link up/secret ../secret up/../secret \"..$2\" \"up$2\" 2>/dev/null | grep -q \"$1\" && echo escaped: read || echo contained: not there";

async fn way_out(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let skilled = Skilled::make(stage, target, None).await?;
    let secret = stage.secret().to_string_lossy().into_owned();
    let script = format!("cd /skills && {WAY_OUT}");
    let said = stage.exec(&skilled.target, &["sh", "-c", &script, "sh", SECRET, &secret]).await?.stdout;
    stage.delete(&skilled.target).await?;
    Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}").into())
}

async fn way_out_on_host(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let skilled = Skilled::make(stage, target, None).await?;
    let ran =
        Command::new("sh").args(["-c", WAY_OUT, "sh", SECRET]).arg(stage.secret()).current_dir(&skilled.place).output();
    stage.delete(&skilled.target).await?;
    let said = String::from_utf8_lossy(&ran?.stdout).into_owned();
    Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}").into())
}

async fn private(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if !stage.is_root {
        return Ok(Finding::not_run("an ordinary user's sandboxes have its own uid"));
    }
    read(stage, target, 0o600).await
}

async fn public(stage: &Stage, target: &Target) -> Outcome<Finding> {
    read(stage, target, 0o644).await
}

async fn read(stage: &Stage, target: &Target, mode: u32) -> Outcome<Finding> {
    let skilled = Skilled::make(stage, target, Some(mode)).await?;
    let ran = stage.sh(&skilled.target, "cat /skills/private").await?;
    stage.delete(&skilled.target).await?;
    Ok(if ran.stdout.contains(SECRET) {
        Finding::escaped("it was read")
    } else {
        Finding::contained(ran.stderr.trim())
    })
}

async fn swapped(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, true).await
}

async fn not_swapped(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, false).await
}

/// Stopped, its skills perhaps exchanged for a link to another directory, and started again.
async fn restarted(stage: &Stage, target: &Target, swap: bool) -> Outcome<Finding> {
    let Skilled { target: victim, place } = Skilled::make(stage, target, None).await?;
    stage.client.stop(&victim.id).await?;
    if swap {
        let outside = stage.directory("outside")?;
        fs::write(outside.join("SKILL.md"), SECRET)?;
        fs::rename(&place, place.with_extension("moved"))?;
        symlink(&outside, &place)?;
    }
    let found = match stage.client.start(&victim.id).await {
        Err(error) => Finding::contained(format!("{:?}: {error}", error.code())),
        Ok(_) => match stage.sh(&victim, "cat /skills/SKILL.md").await?.stdout {
            text if text.contains(SECRET) => Finding::escaped("the link was followed"),
            text if text == "a skill\n" && !swap => Finding::escaped("it started"),
            text => Finding::contained(format!("started with {text:?}")),
        },
    };
    stage.delete(&victim).await?;
    Ok(found)
}
