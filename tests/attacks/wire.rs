//! Conversations with the gate from inside a sandbox, byte for byte, and what the outside made of them.

use std::time::Duration;

use sandbar_api::{ExecRequest, HumanDuration, bytes::encode};

use crate::{
    attack::Finding,
    stage::{Stage, Target, request},
    support::Outcome,
};

/// What is said to the gate, one after the other.
pub(crate) enum Step {
    Send(Vec<u8>),
    /// A byte at a time.
    Slowly(Vec<u8>),
    /// The same many times over.
    Many(usize, Vec<u8>),
    /// An answer up to its empty line.
    Head,
    /// TLS from here on; an empty name is none.
    Tls(&'static str, &'static str),
    /// The same, its greeting in records of one byte.
    Shredded(&'static str),
    /// Whatever else comes, until it is silent for so many milliseconds.
    Rest(u32),
    /// An answer that has to come, and whatever else until it is silent for so many milliseconds.
    Answer(u32),
    /// Another place of the sandbox than its gate.
    At(&'static str),
}

/// Silence after which an answer is over, in milliseconds: the rest of one from loopback is there in one.
pub(crate) const SILENCE: u32 = 700;
/// Longer than a client inside waits in all its steps.
const LONGEST: Duration = Duration::from_secs(120);

impl Step {
    pub(crate) fn send(text: impl AsRef<[u8]>) -> Self {
        Self::Send(text.as_ref().to_vec())
    }

    pub(crate) fn word(&self) -> String {
        match self {
            Self::Send(bytes) => format!("send:{}", encode(bytes)),
            Self::Slowly(bytes) => format!("slow:{}", encode(bytes)),
            Self::Many(count, bytes) => format!("many:{count}:{}", encode(bytes)),
            Self::Head => "head".into(),
            Self::Tls(sni, alpn) => format!("tls:{sni}:{alpn}"),
            Self::Shredded(sni) => format!("shred:{sni}:"),
            Self::Rest(silence) => format!("rest:{silence}"),
            Self::Answer(silence) => format!("answer:{silence}"),
            Self::At(place) => format!("at:{place}"),
        }
    }
}

impl Stage {
    /// All that came back, with every byte readable.
    pub(crate) async fn wire(&self, target: &Target, steps: &[Step]) -> Outcome<String> {
        let words: Vec<String> = steps.iter().map(Step::word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.client_inside(target, "talk", &words).await
    }

    /// What a client inside says of how it went.
    pub(crate) async fn client_inside(&self, target: &Target, name: &str, words: &[&str]) -> Outcome<String> {
        let argv = [&["/workspace/attacks", "--inside", name][..], words].concat();
        let request = ExecRequest { timeout: Some(HumanDuration(LONGEST)), ..request(&argv) };
        let ran = self.client.exec(&target.id, &request).await?;
        match Finding::parse(&ran.stdout) {
            Some(Finding::Escaped(heard)) => Ok(heard),
            other => Err(format!("the client inside: {other:?} {}{}", ran.stdout, ran.stderr).into()),
        }
    }

    /// A word that nothing else of this run has.
    pub(crate) fn mark(&self) -> String {
        format!("mark-{}-", self.number())
    }

    /// A placeholder as the sandbox has it.
    pub(crate) async fn placeholder(&self, target: &Target, name: &str) -> Outcome<String> {
        let said = self.sh(target, &format!("printf %s \"${name}\"")).await?.stdout;
        if said.starts_with("sbp_") { Ok(said) } else { Err(format!("{name} is `{said}` inside").into()) }
    }
}

/// `CONNECT`, then what follows in the tunnel, up to its answer; where nothing follows, none has to come.
pub(crate) fn tunnel(authority: impl AsRef<[u8]>, then: Vec<Step>) -> Vec<Step> {
    let end = if then.is_empty() { Step::Rest(SILENCE) } else { Step::Answer(SILENCE) };
    tunnel_until(authority, then, end)
}

pub(crate) fn tunnel_until(authority: impl AsRef<[u8]>, then: Vec<Step>, end: Step) -> Vec<Step> {
    let line = [b"CONNECT ", authority.as_ref(), b" HTTP/1.1\r\nHost: x\r\n\r\n"].concat();
    let mut steps = vec![Step::Send(line), Step::Head];
    steps.extend(then);
    steps.push(end);
    steps
}

/// A request that closes its connection, so that its answer has an end.
pub(crate) fn get(target: &str, host: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

pub(crate) fn status(heard: &str) -> &str {
    heard.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or("nothing")
}

/// What was answered, shortly, by code where the gate says one.
pub(crate) fn brief(heard: &str) -> String {
    let code = heard.split("sandbar-refusal: ").nth(1).and_then(|rest| rest.split('\\').next()).unwrap_or_default();
    format!("{} {code}", status(heard)).trim().to_owned()
}

/// HTTP/2 by hand: preface, settings and one request of literal fields that no library would send.
pub(crate) fn h2(fields: &[(&[u8], &[u8])], body: Option<&[u8]>) -> Vec<u8> {
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    all.extend(frame(4, 0, 0, &[]));
    // END_HEADERS, and END_STREAM where there is no body
    all.extend(frame(1, if body.is_some() { 4 } else { 5 }, 1, &block(fields)));
    if let Some(body) = body {
        all.extend(frame(0, 1, 1, body));
    }
    all
}

/// One of HTTP/2's frames.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields, none of which is kept in a table.
pub(crate) fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let text = |text: &[u8]| match u8::try_from(text.len()) {
        Ok(length) if length < 127 => [&[length][..], text].concat(),
        _ => [&[127, ((text.len() - 127) % 128) as u8 | 128, ((text.len() - 127) / 128) as u8][..], text].concat(),
    };
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
