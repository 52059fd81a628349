//! Skills on every kind of root, in copies, and what is refused in their place.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
};

use sandbar_api::{HumanSize, Limits, Profile, Root, SnapshotId, User, WorkspaceSource};
use sandbar_provider::{
    Error, Spec, cases,
    suite::{Case, Outcome, Subject, same},
};

use crate::{Home, inside, made, needs_root, said, spec};

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![
        skills_are_there_on_every_profile,
        skills_are_there_on_an_image,
        skills_are_in_copies_too,
        a_link_in_the_place_of_skills_is_not_followed,
        sandbars_own_data_are_no_skills,
    ];
    let root = cases![
        skills_that_only_the_host_may_read_stay_closed,
        skills_beside_all_that_can_be_mounted,
        skills_are_not_written_by_who_may_mount,
    ];
    cases.extend(root.into_iter().map(|case| Case { not_here: needs_root, ..case }));
    cases
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn skills(home: &Home, name: &str) -> Result<PathBuf, String> {
    let place = home.0.join(name);
    fs::write(made(&place)?.join("run"), "#!/bin/sh\necho ran\n").map_err(text)?;
    fs::set_permissions(place.join("run"), fs::Permissions::from_mode(0o755)).map_err(text)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).map_err(text)?;
    Ok(place)
}

fn with(place: &std::path::Path, spec: Spec) -> Spec {
    Spec { skills: Some(place.to_string_lossy().into_owned()), ..spec }
}

const LOOK: &str = "/skills/run; touch /skills/x 2>/dev/null && echo written; \
                    awk '$5 == \"/skills\" {print $6}' /proc/self/mountinfo | grep -o -E 'ro|nosuid|nodev|noexec' | sort";

async fn skills_are_there_on_every_profile(home: &Home) -> Outcome {
    let place = skills(home, "skills-profiles")?;
    for name in Profile::names() {
        let layers = Profile::named(name).map(|profile| profile.layers).unwrap_or_default();
        let output = inside(home, &with(&place, Spec { layers, ..spec(name) }), LOOK).await?;
        same(name, &output.as_str(), &"ran\nnodev\nnosuid\nro\n")?;
    }
    Ok(())
}

async fn skills_are_there_on_an_image(home: &Home) -> Outcome {
    let (place, image) = (skills(home, "skills-image")?, home.0.join("image-of-skills"));
    made(&image.join("bin"))?;
    fs::copy("/bin/busybox", image.join("bin/busybox")).map_err(|error| format!("busybox-static: {error}"))?;
    symlink("busybox", image.join("bin/sh")).map_err(text)?;
    let root = Root::Image { path: image.to_string_lossy().into_owned() };
    let output = inside(home, &with(&place, Spec { root, ..spec("image-skills") }), "/skills/run").await?;
    same("inside", &output.as_str(), &"ran\n")?;
    same("the image is unchanged", &image.join("skills").exists(), &false)
}

async fn skills_are_in_copies_too(home: &Home) -> Outcome {
    let place = skills(home, "skills-copies")?;
    let provider = home.open().await?;
    let (origin, snapshot) = (with(&place, spec("skilled")), SnapshotId::from_parts(7, [7; 10]));
    provider.create(&origin).await.map_err(said)?;
    provider.stop(&origin.id).await.map_err(said)?;
    provider.snapshot(&origin.id, &snapshot).await.map_err(said)?;
    provider.destroy(&origin.id).await.map_err(said)?;
    let copy = Spec { from: Some(snapshot.clone()), ..spec("skilled-copy") };
    let output = inside(home, &with(&place, copy.clone()), "/skills/run").await?;
    same("a copy", &output.as_str(), &"ran\n")?;
    // A copy has them because it was asked for, not because they were copied.
    let output = inside(home, &copy, "ls -A /skills; echo end").await?;
    same("a copy without", &output.as_str(), &"end\n")?;
    provider.discard(&snapshot).await.map_err(said)
}

async fn a_link_in_the_place_of_skills_is_not_followed(home: &Home) -> Outcome {
    let place = skills(home, "skills-parent/skills")?;
    let link = home.0.join("skills-parent/link");
    symlink(&place, &link).map_err(text)?;
    let provider = home.open().await?;
    let real = place.to_string_lossy().into_owned();
    match provider.create(&with(&link, spec("linked"))).await {
        Err(Error::BadSpec { fix, .. }) if fix.contains(&real) => {}
        other => return Err(format!("made with a link: {other:?}")),
    }
    let spec = with(&place, spec("exchanged"));
    provider.create(&spec).await.map_err(said)?;
    provider.stop(&spec.id).await.map_err(said)?;
    fs::rename(&place, home.0.join("skills-parent/moved")).map_err(text)?;
    symlink(home.0.join("skills-parent/moved"), &place).map_err(text)?;
    let started = provider.start(&spec).await;
    provider.destroy(&spec.id).await.map_err(said)?;
    match started {
        Err(Error::BadSpec { .. }) => Ok(()),
        other => Err(format!("started on a link: {other:?}")),
    }
}

async fn sandbars_own_data_are_no_skills(home: &Home) -> Outcome {
    let provider = home.open().await?;
    for path in [PathBuf::from("/"), home.0.join("home/local"), home.0.join("home"), home.0.clone()] {
        match provider.create(&with(&path, spec("own-skills"))).await {
            Err(Error::BadSpec { .. }) => {}
            other => return Err(format!("{}: {other:?}", path.display())),
        }
    }
    Ok(())
}

async fn skills_that_only_the_host_may_read_stay_closed(home: &Home) -> Outcome {
    let place = skills(home, "skills-closed")?;
    fs::write(place.join("private"), "of the host\n").map_err(text)?;
    let script = "cat /skills/private 2>/dev/null || echo closed";
    for (mode, want) in [(0o600, "closed\n"), (0o644, "of the host\n")] {
        fs::set_permissions(place.join("private"), fs::Permissions::from_mode(mode)).map_err(text)?;
        for user in [User::Agent, User::Root] {
            let output = inside(home, &with(&place, Spec { user, ..spec("closed-skills") }), script).await?;
            same(&format!("{mode:o} as {user:?}"), &output.as_str(), &want)?;
        }
    }
    Ok(())
}

/// Each tree of a view finds its own place, whichever others there are.
async fn skills_beside_all_that_can_be_mounted(home: &Home) -> Outcome {
    let (place, shared) = (skills(home, "skills-beside")?, home.0.join("shared-beside"));
    fs::write(made(&shared)?.join("in"), "from the host\n").map_err(text)?;
    let workspace = WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() };
    let limits = Limits { disk: Some(HumanSize(64 << 20)), ..Limits::default() };
    let spec = Spec { workspace, limits, user: User::Root, ..spec("beside") };
    let output = inside(home, &with(&place, spec), "/skills/run; cat /workspace/in; ls /usr/bin/env").await?;
    same("inside", &output.as_str(), &"ran\nfrom the host\n/usr/bin/env\n")
}

/// Without a fence, root inside can mount them anew: then they are nobody's, which cannot be written either.
async fn skills_are_not_written_by_who_may_mount(home: &Home) -> Outcome {
    let place = skills(home, "skills-open")?;
    for (path, mode) in [(place.clone(), 0o777), (place.join("run"), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(text)?;
    }
    let layers = Profile::named("open").map(|profile| profile.layers).unwrap_or_default();
    let spec = with(&place, Spec { layers, user: User::Root, ..spec("open-skills") });
    let script = "mount -o remount,bind,rw /skills && echo writable; /skills/run; touch /skills/x 2>/dev/null && echo made; \
                  { echo x >> /skills/run; } 2>/dev/null && echo written; chmod 700 /skills/run 2>/dev/null && echo changed";
    same("inside", &inside(home, &spec, script).await?.as_str(), &"writable\nran\n")?;
    same("on the host", &fs::read_dir(&place).map_err(text)?.count(), &1)
}
