//! The first channel: a POST, signed as Standard Webhooks has it, through the gateway's vetted way out.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_lc_rs::hmac;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::{Problem, WebhookId, bytes::encode};
use sandbar_gateway::{Answered, Target};

use super::{
    channel::{Channel, Undelivered},
    notice::Notice,
};
use crate::{Inner, clock, gate::Vault, ids};

pub(super) const SECRET_BYTES: usize = 32;
const PREFIX: &str = "whsec_";

pub(super) struct Post {
    pub(super) inner: Arc<Inner>,
    pub(super) id: WebhookId,
    pub(super) url: String,
    pub(super) sealed: Vec<u8>,
}

#[async_trait]
impl Channel for Post {
    async fn deliver(&self, notice: &Notice) -> Result<(), Undelivered> {
        let unusable = |cause: String| Undelivered::later(format!("{cause} Remove the webhook and add it again."));
        let target: Target = self.url.parse().map_err(|bad| unusable(format!("Its URL is not usable: {bad}.")))?;
        let body = serde_json::to_vec(notice).map_err(|error| Undelivered::later(error.to_string()))?;
        let gates = &self.inner.gates;
        let secret = gates.vault.unseal(&context(&self.id, &self.url), &self.sealed);
        let secret = secret.map_err(|_| unusable("Its signing secret cannot be read any more.".into()))?;
        let now = clock::now();
        let headers = signed(&secret, &notice.id, now.timestamp(), &body);
        drop(secret);
        // So that what the operator changed in gateway.toml holds for this one.
        gates.loaded();
        let answered = gates.gateway.post(&target, &headers, Bytes::from(body)).await;
        judge(&answered.map_err(|error| Undelivered::later(error.to_string()))?, &target.place(), now)
    }
}

/// A new secret: sealed, and as it is shown once.
pub(super) fn secret(vault: &Vault, id: &WebhookId, url: &str) -> Result<(Vec<u8>, String), Problem> {
    let secret: [u8; SECRET_BYTES] = ids::random()?;
    Ok((vault.seal(&context(id, url), &secret)?, format!("{PREFIX}{}", encode(&secret))))
}

/// What a secret is sealed for: whoever can write the database cannot have it sign for another receiver.
fn context(id: &WebhookId, url: &str) -> String {
    format!("webhook:{id}:{url}")
}

fn signed(secret: &[u8], id: &str, seconds: i64, body: &[u8]) -> [(&'static str, String); 3] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(format!("{id}.{seconds}.").as_bytes());
    context.update(body);
    let signature = format!("v1,{}", encode(context.sign().as_ref()));
    [("webhook-id", id.to_owned()), ("webhook-timestamp", seconds.to_string()), ("webhook-signature", signature)]
}

fn judge(answered: &Answered, place: &str, now: DateTime<Utc>) -> Result<(), Undelivered> {
    let cause = match answered.status {
        200..300 => return Ok(()),
        410 => {
            let cause = format!("{place} answered 410: it wants nothing any more");
            return Err(Undelivered::Gone { cause });
        }
        status @ 300..400 => {
            format!("{place} answered {status}, a redirect, and none is followed: give the URL it leads to")
        }
        status => format!("{place} answered {status}"),
    };
    let after = answered.retry_after.as_deref().and_then(|text| retry_after(text, now));
    Err(Undelivered::Later { cause, after })
}

/// Seconds, or a date.
fn retry_after(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = DateTime::parse_from_rfc2822(text.trim()).ok()?;
    Some((at.to_utc() - now).to_std().unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    /// The example of the specification.
    #[test]
    fn the_signature_is_the_specifications() {
        let secret = sandbar_api::bytes::decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
        let headers = signed(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(headers[2].1, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!((headers[0].1.as_str(), headers[1].1.as_str()), ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"));
    }

    #[test]
    fn two_hundreds_are_delivered_and_nothing_else_is() {
        let judge = |status, retry_after: Option<&str>| {
            let retry_after = retry_after.map(str::to_owned);
            super::judge(&Answered { status, retry_after }, "a.example", Utc::now())
        };
        for status in [200, 201, 204, 299] {
            assert_eq!(judge(status, None), Ok(()));
        }
        for (status, says) in [(302, "redirect"), (100, "100"), (404, "404"), (500, "500")] {
            let told = judge(status, None);
            assert!(
                matches!(&told, Err(Undelivered::Later { cause, after: None }) if cause.contains(says)),
                "{told:?}"
            );
        }
        assert!(matches!(judge(410, None), Err(Undelivered::Gone { .. })));
        let after = |text| match judge(429, Some(text)) {
            Err(Undelivered::Later { after, .. }) => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        let later = (Utc::now() + TimeDelta::seconds(60)).to_rfc2822().replace("+0000", "GMT");
        assert!(after(&later).is_some_and(|wait| (58..61).contains(&wait.as_secs())));
        assert_eq!((after("Wed, 21 Oct 2015 07:28:00 GMT"), after("soon")), (Some(Duration::ZERO), None));
    }
}
