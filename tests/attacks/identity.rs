//! Copies of a sandbox: whatever tells two machines apart must differ between them.

use sandbar_api::{Code, CreateSandbox, CreateSnapshot, Fork};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target},
    support::Outcome,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act| {
        Attack::act(Class::Identity, name, act, Control::Act("of one sandbox, asked twice", act!(same_twice)))
    };
    vec![
        doing("ids_of_forks", act!(fork_ids)),
        doing("host_name_of_forks", act!(fork_names)),
        doing("machine_id_of_forks", act!(fork_machine)),
        doing("boot_id_of_forks", act!(fork_boot)),
        doing("seeds_of_forks", act!(fork_seeds)),
        doing("files_of_forks", act!(fork_files)),
        doing("processes_of_forks", act!(fork_processes)),
        doing("identity_from_a_snapshot", act!(from_snapshot)),
        doing("sessions_of_forks", act!(fork_sessions)),
        doing("identity_from_a_header", act!(header)),
    ]
}

/// A sandbox with files of its own, and two copies.
struct Family {
    ids: [String; 3],
    sessions: [String; 3],
    names: [String; 3],
}

async fn family(stage: &Stage, target: &Target) -> Outcome<Family> {
    let request = CreateSandbox { template: Some(target.template.clone()), ..CreateSandbox::default() };
    let origin = stage.client.create(&request, None).await?.sandbox;
    inside(stage, origin.id.as_str(), "echo origin > /workspace/file; sleep 4444 >/dev/null 2>&1 &").await?;
    let frozen = freezes(stage, origin.id.as_str()).await?;
    let copies = stage.client.fork(origin.id.as_str(), &Fork { count: 2, ..Fork::default() }).await?;
    let [one, two] = <[_; 2]>::try_from(copies).map_err(|copies| format!("{} copies", copies.len()))?;
    if !frozen {
        stage.client.start(origin.id.as_str()).await?;
    }
    let all = [&origin, &one, &two];
    Ok(Family {
        ids: all.map(|sandbox| sandbox.id.to_string()),
        sessions: all.map(|sandbox| sandbox.session.to_string()),
        names: all.map(|sandbox| sandbox.name.clone()),
    })
}

/// Where nothing can be frozen, what is copied has to be stopped.
async fn freezes(stage: &Stage, id: &str) -> Outcome<bool> {
    match stage.client.pause(id).await {
        Ok(_) => {
            stage.client.resume(id).await?;
            Ok(true)
        }
        Err(error) if matches!(error.code(), Some(Code::NotEnforceable | Code::Declined)) => {
            stage.client.stop(id).await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn inside(stage: &Stage, id: &str, script: &str) -> Outcome<String> {
    let ran = stage.client.exec(id, &crate::stage::request(&["sh", "-c", script])).await?;
    if ran.exit.code == 0 { Ok(ran.stdout) } else { Err(format!("{script}: {}", ran.stderr).into()) }
}

impl Family {
    async fn end(&self, stage: &Stage) -> Outcome {
        for id in &self.ids {
            stage.client.delete(id).await?;
        }
        Ok(())
    }

    /// What a script says in each of them.
    async fn each(&self, stage: &Stage, script: &str) -> Outcome<Finding> {
        let mut said = vec![];
        for id in &self.ids {
            said.push(inside(stage, id, script).await?.trim().to_owned());
        }
        Ok(differ(&said))
    }
}

fn differ(said: &[String]) -> Finding {
    let shown = said.join(" | ");
    let mut unique = said.to_vec();
    unique.sort();
    unique.dedup();
    if unique.len() == said.len() {
        Finding::contained(shown)
    } else {
        Finding::escaped(format!("the same twice: {shown}"))
    }
}

async fn each(stage: &Stage, target: &Target, script: &str) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    let found = family.each(stage, script).await;
    family.end(stage).await?;
    found
}

async fn same_twice(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = "hostname 2>/dev/null || cat /proc/sys/kernel/hostname";
    let said = [inside(stage, &target.id, script).await?, inside(stage, &target.id, script).await?];
    Ok(differ(&said))
}

async fn fork_ids(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    family.end(stage).await?;
    Ok(match differ(&family.ids) {
        Finding::Contained(_) => differ(&family.names),
        other => other,
    })
}

async fn fork_sessions(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    family.end(stage).await?;
    Ok(differ(&family.sessions))
}

async fn fork_names(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, "cat /proc/sys/kernel/hostname").await
}

/// Where there is one; where there is none it cannot be shared.
async fn fork_machine(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    let mut said = vec![];
    for id in &family.ids {
        said.push(inside(stage, id, "cat /etc/machine-id 2>/dev/null; true").await?.trim().to_owned());
    }
    family.end(stage).await?;
    Ok(if said.iter().all(String::is_empty) { Finding::contained("there is none") } else { differ(&said) })
}

async fn fork_boot(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, "cat /proc/sys/kernel/random/boot_id").await
}

async fn fork_seeds(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = "od -An -tx1 -N16 /dev/urandom; cat /proc/sys/kernel/random/uuid; od -An -tx1 /proc/self/auxv | tail -n 20 | cksum";
    each(stage, target, script).await
}

/// The same at first, and no longer after one of them writes.
async fn fork_files(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    for (id, word) in family.ids.iter().zip(["one", "two", "three"]) {
        let was = inside(stage, id, "cat /workspace/file").await?;
        if was != "origin\n" {
            return Ok(Finding::escaped(format!("a copy began with {was}")));
        }
        inside(stage, id, &format!("echo {word} > /workspace/file; echo {word} > /var/tmp/file 2>/dev/null; true"))
            .await?;
    }
    let found = family.each(stage, "cat /workspace/file").await;
    family.end(stage).await?;
    found
}

/// What ran in the origin does not run in its copies.
async fn fork_processes(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let family = family(stage, target).await?;
    let script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 4[4]44'; true";
    let mut said = vec![];
    for id in &family.ids {
        said.push(inside(stage, id, script).await?.trim().to_owned());
    }
    family.end(stage).await?;
    let copied = said[1..].iter().any(|count| count != "0");
    Ok(if copied { Finding::escaped(said.join(" | ")) } else { Finding::contained(said.join(" | ")) })
}

async fn from_snapshot(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let request = CreateSandbox { template: Some(target.template.clone()), ..CreateSandbox::default() };
    let origin = stage.client.create(&request, None).await?.sandbox;
    let frozen = freezes(stage, origin.id.as_str()).await?;
    let snapshot = stage.client.snapshot(origin.id.as_str(), &CreateSnapshot::default()).await?;
    let from = Some(snapshot.id.to_string());
    let copy = stage.client.create(&CreateSandbox { from, ..CreateSandbox::default() }, None).await?.sandbox;
    if !frozen {
        stage.client.start(origin.id.as_str()).await?;
    }
    let script = "cat /proc/sys/kernel/hostname /proc/sys/kernel/random/uuid";
    let said = [inside(stage, origin.id.as_str(), script).await?, inside(stage, copy.id.as_str(), script).await?];
    for id in [&origin.id, &copy.id] {
        stage.client.delete(id.as_str()).await?;
    }
    stage.client.delete_snapshot(snapshot.id.as_str()).await?;
    Ok(differ(&said.map(|text| text.replace('\n', " "))))
}

/// Who one is comes from the channel, never from the request.
async fn header(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let viewer = crate::stage::token(&stage.client, sandbar_api::Role::Viewer).await?;
    let host = stage.address()?;
    let body = "{\"argv\":[\"true\"],\"role\":\"admin\",\"owner\":\"socket\"}";
    let answer = stage.send(&format!(
        "POST /v1/sandboxes/{}/exec HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {viewer}\r\nX-Forwarded-User: socket\r\nX-Role: admin\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        target.id,
        body.len()
    ))?;
    let status = answer.split_whitespace().nth(1).unwrap_or_default().to_owned();
    Ok(if status == "403" { Finding::contained("403") } else { Finding::escaped(status) })
}
