//! Profiles and single layers: what is asked is in force, and what is off is not, as the report from inside says.

use sandbar_api::{Layer, LayerReport, Profile, Requirement, Root, User};
use sandbar_provider::{
    Error, Spec, cases,
    suite::{Case, Outcome, Subject, run, same},
};

use crate::{Home, is_root, needs_root, said, spec};

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![
        every_profile_holds_what_it_requires,
        a_layer_that_is_off_is_told_from_one_that_is_on,
        hardened_leaves_the_workspace_alone,
        what_cannot_be_enforced_is_refused,
    ];
    let root = cases![root_inside_owns_what_it_sees_and_nothing_else];
    cases.extend(root.into_iter().map(|case| Case { not_here: needs_root, ..case }));
    cases
}

async fn report(home: &Home, spec: &Spec) -> Result<Vec<LayerReport>, String> {
    let provider = home.open().await?;
    provider.create(spec).await.map_err(said)?;
    let report = provider.inspect(spec).await.map_err(said);
    provider.destroy(&spec.id).await.map_err(said)?;
    report
}

fn of_profile(name: &str) -> Result<Spec, String> {
    let profile = Profile::named(name).ok_or("no such profile")?;
    Ok(Spec { layers: profile.layers, ..spec(name) })
}

async fn every_profile_holds_what_it_requires(home: &Home) -> Outcome {
    for name in Profile::names() {
        for layer in report(home, &of_profile(name)?).await? {
            let wanted = match layer.requirement {
                Requirement::Required => true,
                Requirement::Optional => layer.layer == Layer::Users && is_root(),
                // What stands off may be in force all the same: a user without capabilities has none to lose.
                Requirement::Off => continue,
            };
            same(&format!("{name}: {}: {}", layer.layer.title(), layer.evidence), &layer.in_force, &wanted)?;
        }
    }
    Ok(())
}

async fn a_layer_that_is_off_is_told_from_one_that_is_on(home: &Home) -> Outcome {
    for off in [Layer::Seccomp, Layer::Landlock, Layer::NoNewPrivs, Layer::Capabilities] {
        let mut spec = of_profile("hardened")?;
        spec.layers.insert(off, Requirement::Off);
        for layer in report(home, &spec).await? {
            let wanted = match layer.requirement {
                Requirement::Required => true,
                Requirement::Off if layer.layer == off => false,
                _ => continue,
            };
            let what = format!("without {}: {}: {}", off.as_str(), layer.layer.as_str(), layer.evidence);
            same(&what, &layer.in_force, &wanted)?;
        }
    }
    for off in [Layer::ReadOnlyRoot, Layer::NoExec] {
        let mut spec = of_profile("hardened")?;
        spec.layers.insert(off, Requirement::Off);
        let found = report(home, &spec).await?.into_iter().find(|layer| layer.layer == off);
        same(off.as_str(), &found.map(|layer| layer.in_force), &Some(false))?;
    }
    Ok(())
}

async fn hardened_leaves_the_workspace_alone(home: &Home) -> Outcome {
    let (provider, spec) = (home.open().await?, of_profile("hardened")?);
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script = "cd /workspace && printf '#!/bin/sh\\necho ran\\n' > x && chmod +x x && ./x && cp x /tmp/x && cp x ~/x; \
                  /tmp/x 2>/dev/null || echo no tmp; ~/x 2>/dev/null || echo no home; touch /opt/x 2>/dev/null || echo no root; \
                  touch /var/tmp/x 2>/dev/null || echo no var";
    let ran = run(&guest, script).await?;
    provider.destroy(&spec.id).await.map_err(said)?;
    same("output", &ran.output.as_str(), &"ran\nno tmp\nno home\nno root\nno var\n")
}

async fn what_cannot_be_enforced_is_refused(home: &Home) -> Outcome {
    let provider = home.open().await?;
    let mut refused = vec![];
    let mut no_exec = of_profile("standard")?;
    no_exec.layers.insert(Layer::NoExec, Requirement::Required);
    refused.push(Spec { user: User::Root, ..no_exec.clone() });
    refused.push(Spec { root: Root::Image { path: "/usr".into() }, ..no_exec });
    let mut read_only = of_profile("standard")?;
    read_only.layers.insert(Layer::ReadOnlyRoot, Requirement::Required);
    refused.push(Spec { user: User::Root, ..read_only });
    if !is_root() {
        let mut users = of_profile("standard")?;
        users.layers.insert(Layer::Users, Requirement::Required);
        refused.push(users);
        refused.push(Spec { user: User::Root, ..of_profile("standard")? });
    }
    for spec in refused {
        match provider.create(&spec).await {
            Err(Error::NotEnforceable { .. }) => {}
            other => return Err(format!("{other:?}")),
        }
        same("left behind", &provider.list().await.map_err(said)?.len(), &0)?;
    }
    Ok(())
}

async fn root_inside_owns_what_it_sees_and_nothing_else(home: &Home) -> Outcome {
    let private = std::env::temp_dir().join(format!("sandbar-private-{}", std::process::id()));
    std::fs::write(&private, "x").map_err(|error| error.to_string())?;
    let (provider, spec) = (home.open().await?, Spec { user: User::Root, ..spec("rooted") });
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script = "id -u; touch /usr/bin/mine && chown 1000:1000 /usr/bin/mine && stat -c '%u' /usr/bin/mine; \
                  rm /usr/bin/env && ls /usr/bin/env 2>&1 | tail -c 26; cat /etc/shadow 2>/dev/null || echo no shadow; \
                  (echo x > /proc/self/comm) 2>/dev/null || echo no proc; mount -t tmpfs x /mnt 2>/dev/null || echo no mount; \
                  mknod /tmp/null c 1 3 2>/dev/null || echo no device; kill -9 1; echo alive";
    let ran = run(&guest, script).await?;
    let layers = provider.inspect(&spec).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)?;
    let wanted = "0\n1000\nNo such file or directory\nno shadow\nno proc\nno mount\nno device\nalive\n";
    same("output", &ran.output.as_str(), &wanted)?;
    same("the host's own", &std::path::Path::new("/usr/bin/env").exists(), &true)?;
    same("the host's own", &std::path::Path::new("/usr/bin/mine").exists(), &false)?;
    std::fs::remove_file(private).map_err(|error| error.to_string())?;
    for layer in layers.into_iter().filter(|layer| layer.requirement == Requirement::Required) {
        same(&format!("{}: {}", layer.layer.title(), layer.evidence), &layer.in_force, &true)?;
    }
    Ok(())
}
