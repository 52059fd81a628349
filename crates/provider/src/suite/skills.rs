//! A directory of the host's that a sandbox may read and run, whenever it starts, and never change.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::{
    Case, Outcome, Subject,
    cases::{is_listed, said, spec},
    inside::run,
    same,
};
use crate::{Error, Spec, cases};

pub(super) fn all<S: Subject>() -> Vec<Case<S>> {
    cases![skills_are_read_and_run_and_never_changed, skills_that_are_not_there_refuse_the_sandbox]
}

const USE: &str = "cat /skills/greet/SKILL.md; /skills/greet/run; ls /skills";
const CHANGE: &str = "cd /skills; for way in 'touch new' 'rm greet/SKILL.md' 'mv greet other' 'chmod 777 greet' \
                      'mkdir d' 'ln greet/run linked' 'truncate -s 0 greet/SKILL.md'; do \
                      $way 2>/dev/null && echo \"$way went through\"; done; echo tried";

async fn skills_are_read_and_run_and_never_changed<S: Subject>(subject: &S) -> Outcome {
    let text = |error: std::io::Error| error.to_string();
    let place = std::env::temp_dir().canonicalize().map_err(text)?;
    let place = place.join(format!("sandbar-suite-skills-{}", std::process::id()));
    let outcome = match furnish(&place) {
        Ok(()) => used(subject, &place).await,
        Err(error) => Err(error.to_string()),
    };
    fs::remove_dir_all(&place).map_err(text)?;
    outcome
}

/// Open to everybody, whom a sandbox's users are among.
fn furnish(place: &Path) -> std::io::Result<()> {
    let skill = place.join("greet");
    fs::create_dir_all(&skill)?;
    fs::write(skill.join("SKILL.md"), "greet people\n")?;
    fs::write(skill.join("run"), "#!/bin/sh\necho good day\n")?;
    for (path, mode) in [(place, 0o755), (&skill, 0o755), (&skill.join("SKILL.md"), 0o644), (&skill.join("run"), 0o755)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

async fn used<S: Subject>(subject: &S, place: &Path) -> Outcome {
    let provider = subject.open().await?;
    let spec = Spec { skills: Some(place.to_string_lossy().into_owned()), ..spec()? };
    if subject.differs().no_host_directories {
        return match provider.create(&spec).await {
            Err(Error::BadSpec { fix, .. }) if !fix.is_empty() => {
                same("listed", &is_listed(&provider, &spec.id).await?, &None)
            }
            other => Err(format!("skills of the host: {other:?}")),
        };
    }
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("used", &run(&guest, USE).await?.output.as_str(), &"greet people\ngood day\ngreet\n")?;
    same("changed", &run(&guest, CHANGE).await?.output.as_str(), &"tried\n")?;
    provider.stop(&spec.id).await.map_err(said)?;
    // What the host changes is seen.
    fs::write(place.join("greet/SKILL.md"), "greet everybody\n").map_err(|error| error.to_string())?;
    provider.start(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("after a start", &run(&guest, USE).await?.output.as_str(), &"greet everybody\ngood day\ngreet\n")?;
    provider.destroy(&spec.id).await.map_err(said)?;
    same("on the host", &place.join("greet/SKILL.md").exists(), &true)
}

async fn skills_that_are_not_there_refuse_the_sandbox<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    for path in ["/nonexistent/skills", "skills", "/tmp/../etc", "/etc/passwd"] {
        let spec = Spec { skills: Some(path.into()), ..spec()? };
        match provider.create(&spec).await {
            Err(Error::BadSpec { fix, .. }) if !fix.is_empty() => {}
            other => return Err(format!("{path}: {other:?}")),
        }
        same(path, &is_listed(&provider, &spec.id).await?, &None)?;
    }
    Ok(())
}
