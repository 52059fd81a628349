//! Secrets that were taken away or changed while a sandbox holds their placeholders, and values that would change a request.

use sandbar_api::{CreateSandbox, SetSecret};

use super::{VALUE, over_tls};
use crate::{
    attack::Finding,
    names::RULES,
    stage::{Stage, Target, recipe},
    support::Outcome,
};

async fn after(
    stage: &Stage,
    target: &Target,
    name: &str,
    change: impl AsyncFnOnce(&Target) -> Outcome,
) -> Outcome<Finding> {
    let set = SetSecret {
        hosts: vec!["key.out.test".into()],
        placement: "header:X-Mine:{}".into(),
        value: Some(VALUE.into()),
    };
    stage.client.set_secret(name, &set).await?;
    let shared = stage.directory("after")?;
    std::fs::hard_link(stage.scratch.join("attacks"), shared.join("attacks"))?;
    let request = CreateSandbox {
        template: Some(stage.template(&recipe(target.profile, RULES, &[]))?),
        workspace: sandbar_api::WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() },
        secrets: vec![name.into()],
        ..CreateSandbox::default()
    };
    let made = stage.client.create(&request, None).await?.sandbox;
    let made = Target { id: made.id.to_string(), shared, profile: target.profile, template: String::new() };
    let token = stage.placeholder(&made, name).await?;
    let request =
        format!("GET /MARK HTTP/1.1\r\nHost: key.out.test:PORT\r\nX-Mine: {token}\r\nConnection: close\r\n\r\n");
    let mark = stage.mark();
    let before = over_tls(stage, &made, "key.out.test", &request, &mark).await?;
    if !matches!(before, Finding::Escaped(_)) {
        return Err(format!("it did not work before: {}", before.line()).into());
    }
    change(&made).await?;
    let mark = stage.mark();
    let found = over_tls(stage, &made, "key.out.test", &request, &mark).await?;
    stage.delete(&made).await?;
    let _gone_already = stage.client.remove_secret(name).await;
    Ok(found)
}

pub(super) async fn revoked(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after(stage, target, "REVOKED_TOKEN", async |made: &Target| {
        stage.client.revoke_secret(&made.id, "REVOKED_TOKEN").await?;
        Ok(())
    })
    .await
}

pub(super) async fn removed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after(stage, target, "REMOVED_TOKEN", async |_: &Target| Ok(stage.client.remove_secret("REMOVED_TOKEN").await?))
        .await
}

async fn rotate(stage: &Stage, target: &Target, value: &str) -> Outcome<Finding> {
    after(stage, target, "ROTATED_TOKEN", async |_: &Target| {
        let set = SetSecret {
            hosts: vec!["key.out.test".into()],
            placement: "header:X-Mine:{}".into(),
            value: Some(value.into()),
        };
        stage.client.set_secret("ROTATED_TOKEN", &set).await?;
        Ok(())
    })
    .await
}

pub(super) async fn rotated(stage: &Stage, target: &Target) -> Outcome<Finding> {
    rotate(stage, target, "another value").await
}

pub(super) async fn before_rotation(stage: &Stage, target: &Target) -> Outcome<Finding> {
    rotate(stage, target, VALUE).await
}

/// A value with lines in it, by mistake or not: it must not add fields to a request.
pub(super) async fn breaking(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let set = |value: &str| SetSecret {
        hosts: vec!["key.out.test".into()],
        placement: "header:X-Mine:{}".into(),
        value: Some(value.into()),
    };
    let value = format!("{VALUE}\r\nX-Added: yes\r\n\r\nGET /closed HTTP/1.1");
    if let Err(refused) = stage.client.set_secret("BROKEN_TOKEN", &set(&value)).await {
        return Ok(Finding::contained(refused.to_string()));
    }
    let found = after(stage, target, "BROKEN_TOKEN", async |_: &Target| {
        stage.client.set_secret("BROKEN_TOKEN", &set(&value)).await?;
        Ok(())
    })
    .await?;
    Ok(found)
}
