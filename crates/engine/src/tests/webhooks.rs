//! Webhooks as surfaces see them: added, bounded, sealed, removed.

use sandbar_api::{Code, CreateWebhook, webhook::MAX_WEBHOOKS};

use super::{Bed, Tested, code};

const PATH: &str = "PathNobodyIsToldOf";

fn to(url: &str, name: Option<&str>, kinds: &[&str]) -> CreateWebhook {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    CreateWebhook { url: url.into(), name: name.map(Into::into), kinds }
}

#[tokio::test]
async fn they_outlive_the_server_and_their_secrets_are_sealed() -> Tested {
    let mut bed = Bed::new().await?;
    let url = format!("https://hooks.example.org/{PATH}");
    let added = bed.engine.add_webhook(to(&url, Some("pager"), &[])).await?;
    let secret = added.secret.strip_prefix("whsec_").ok_or("another prefix")?;
    assert_eq!(sandbar_api::bytes::decode(secret).map(|bytes| bytes.len()), Some(32));
    assert!(!format!("{added:?}").contains(PATH) && !format!("{added:?}").contains(secret));
    let taken = bed.engine.add_webhook(to(&url, Some("pager"), &[])).await;
    assert_eq!(code(taken), Some(Code::NameTaken));
    bed.restart().await?;
    assert_eq!(bed.engine.webhooks().await?, std::slice::from_ref(&added.webhook));
    assert_eq!(bed.engine.webhook("pager").await?, bed.engine.webhook(added.webhook.id.as_str()).await?);
    let events = serde_json::to_string(&bed.engine.events(0, 100, None).await?)?;
    assert!(events.contains("webhook.added") && events.contains("hooks.example.org"));
    assert!(!events.contains(PATH) && !events.contains(secret), "{events}");
    bed.engine.remove_webhook("pager").await?;
    assert_eq!(code(bed.engine.remove_webhook("pager").await), Some(Code::UnknownWebhook));
    assert_eq!(code(bed.engine.test_webhook("pager").await), Some(Code::UnknownWebhook));
    bed.engine.shutdown().await;
    let raw = sandbar_api::bytes::decode(secret).ok_or("no base64")?;
    for entry in std::fs::read_dir(&bed.home)? {
        let path = entry?.path();
        if path.is_file() {
            let bytes = std::fs::read(&path)?;
            let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!holds(secret.as_bytes()) && !holds(&raw), "it is in {}", path.display());
        }
    }
    Ok(())
}

#[tokio::test]
async fn there_are_no_more_than_there_may_be() -> Tested {
    let bed = Bed::new().await?;
    for _ in 0..MAX_WEBHOOKS {
        bed.engine.add_webhook(to("https://a.example/", None, &["approval."])).await?;
    }
    let more = || bed.engine.add_webhook(to("https://a.example/", Some("last"), &[]));
    assert_eq!(code(more().await), Some(Code::TooMany));
    let first = bed.engine.webhooks().await?.swap_remove(0);
    bed.engine.remove_webhook(&first.name).await?;
    more().await?;
    Ok(())
}
