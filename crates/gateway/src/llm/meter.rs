//! Reads an answer as it passes and finds what it used. It passes byte for byte; only usage that the client did not ask
//! for is taken out of a Chat stream again.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use hyper::{HeaderMap, header};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Usage, edit,
    route::Endpoint,
    scan::Capture,
    sse::{self, Piece, Splitter},
    usage::{AnthropicUsage, OpenAiUsage},
};

pub(super) struct Meter {
    endpoint: Endpoint,
    hide: bool,
    form: Form,
}

enum Form {
    Json(Capture),
    Events(Splitter, Tale),
    Opaque(&'static str),
}

/// What the events have told so far.
#[derive(Default)]
struct Tale {
    openai: Option<Usage>,
    anthropic: AnthropicUsage,
    /// Nothing that follows can change the usage.
    told: bool,
}

/// What becomes of an event.
enum Fate {
    Pass,
    Drop,
    Change(Vec<u8>),
}

#[derive(Deserialize)]
struct ChatChunk {
    choices: Option<Vec<IgnoredAny>>,
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct ResponseEvent<'e> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'e, str>,
    response: Option<ResponseUsage>,
}

#[derive(Deserialize)]
struct ResponseUsage {
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct MessageEvent<'e> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'e, str>,
    message: Option<MessageUsage>,
    usage: Option<AnthropicUsage>,
}

#[derive(Deserialize)]
struct MessageUsage {
    usage: Option<AnthropicUsage>,
}

impl Meter {
    /// For an answer that costs, by its headers. `hide`: its usage was asked for on the client's behalf.
    pub(super) fn new(endpoint: Endpoint, headers: &HeaderMap, hide: bool) -> Self {
        let value = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
        let encoded =
            value(header::CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity"));
        let kind = value(header::CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let form = if encoded {
            Form::Opaque("the answer is compressed, so its usage was not read")
        } else if kind.starts_with("text/event-stream") {
            Form::Events(Splitter::default(), Tale::default())
        } else {
            Form::Json(Capture::new("usage"))
        };
        Self { endpoint, hide, form }
    }

    /// Whether bytes are taken out, so that the answer's length is not known beforehand.
    pub(super) fn changes(&self) -> bool {
        self.hide && matches!(self.form, Form::Events(..))
    }

    /// What the client is to get of this chunk, or of what was held back before.
    pub(super) fn push(&mut self, chunk: Bytes) -> Bytes {
        let changes = self.changes();
        match &mut self.form {
            Form::Opaque(_) => chunk,
            Form::Json(capture) => {
                capture.feed(&chunk);
                chunk
            }
            Form::Events(splitter, tale) => {
                let mut passed = BytesMut::new();
                for piece in splitter.push(&chunk) {
                    let fate = match &piece {
                        Piece::Event(event) => tale.event(self.endpoint, event),
                        Piece::Part(_) => Fate::Pass,
                    };
                    match fate {
                        _ if !changes => {}
                        Fate::Pass => passed.extend_from_slice(&piece.into_bytes()),
                        Fate::Change(event) => passed.extend_from_slice(&event),
                        Fate::Drop => {}
                    }
                }
                if changes { passed.freeze() } else { chunk }
            }
        }
    }

    /// What was held back when the answer is over.
    pub(super) fn finish(&mut self) -> Bytes {
        let changes = self.changes();
        match &mut self.form {
            Form::Events(splitter, _) if changes => splitter.finish().map(Piece::into_bytes).unwrap_or_default(),
            _ => Bytes::new(),
        }
    }

    /// What was used, as soon as it is certain; a stream that broke off before has told too little.
    pub(super) fn usage(&self) -> Option<Usage> {
        match (&self.form, self.endpoint) {
            (Form::Json(capture), Endpoint::Messages | Endpoint::CountTokens) => {
                serde_json::from_slice::<AnthropicUsage>(capture.found()?).ok()?.usage()
            }
            (Form::Json(capture), _) => serde_json::from_slice::<OpenAiUsage>(capture.found()?).ok()?.usage(),
            (Form::Events(_, tale), _) if !tale.told => None,
            (Form::Events(_, tale), Endpoint::Messages) => tale.anthropic.usage(),
            (Form::Events(_, tale), _) => tale.openai,
            (Form::Opaque(_), _) => None,
        }
    }

    /// Why there is no usage in an answer that is over.
    pub(super) fn missing(&self) -> &'static str {
        match self.form {
            Form::Opaque(cause) => cause,
            _ => "the answer reports no usage that can be read",
        }
    }
}

impl Tale {
    fn event(&mut self, endpoint: Endpoint, event: &[u8]) -> Fate {
        let Some(data) = sse::data(event) else { return Fate::Pass };
        match endpoint {
            Endpoint::Chat => return self.chat(event, &data),
            Endpoint::Responses if contains(&data, "usage") => self.response(&data),
            Endpoint::Messages if contains(&data, "usage") || contains(&data, "message_stop") => self.message(&data),
            _ => {}
        }
        Fate::Pass
    }

    fn chat(&mut self, event: &[u8], data: &[u8]) -> Fate {
        if data == b"[DONE]" {
            self.told |= self.openai.is_some();
            return Fate::Pass;
        }
        if !contains(data, "usage") {
            return Fate::Pass;
        }
        let Ok(chunk) = serde_json::from_slice::<ChatChunk>(data) else { return Fate::Pass };
        match chunk.usage.map(|usage| usage.usage()) {
            Some(usage) => {
                self.openai = usage.or(self.openai);
                if !chunk.choices.is_some_and(|choices| choices.is_empty()) {
                    return Fate::Pass;
                }
                self.told |= usage.is_some();
                Fate::Drop
            }
            None if edit::value(data, "usage") == Some(b"null") => {
                let without = edit::remove(data, "usage").and_then(|data| sse::with_data(event, &data));
                without.map_or(Fate::Pass, Fate::Change)
            }
            None => Fate::Pass,
        }
    }

    fn response(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<ResponseEvent<'_>>(data) else { return };
        if matches!(&*event.kind, "response.completed" | "response.incomplete" | "response.failed") {
            self.openai = event.response.and_then(|response| response.usage?.usage());
            self.told = true;
        }
    }

    fn message(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<MessageEvent<'_>>(data) else { return };
        let usage = match &*event.kind {
            "message_start" => {
                // what has been written so far is all that `message_delta` tells, and nothing before it
                event.message.and_then(|message| message.usage).map(AnthropicUsage::input_only)
            }
            "message_delta" => event.usage,
            "message_stop" => {
                self.told = true;
                None
            }
            _ => None,
        };
        self.anthropic = self.anthropic.then(usage.unwrap_or_default());
    }
}

/// Looked at before an event is parsed: few of them have anything to tell.
fn contains(text: &[u8], part: &str) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = r#"{"prompt_tokens":3,"completion_tokens":4}"#;

    fn stream(endpoint: Endpoint, hide: bool, text: &str) -> (String, Option<Usage>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("Text/Event-Stream;charset=utf-8"));
        let mut seen = None;
        for size in [1, 3, text.len()] {
            let mut meter = Meter::new(endpoint, &headers, hide);
            let mut passed = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                passed.extend_from_slice(&meter.push(Bytes::copy_from_slice(chunk)));
            }
            passed.extend_from_slice(&meter.finish());
            let result = (String::from_utf8(passed).expect("text"), meter.usage());
            assert_eq!(seen.get_or_insert(result.clone()), &result, "in chunks of {size}");
        }
        seen.expect("a result")
    }

    #[test]
    fn what_was_asked_for_to_count_is_taken_out_and_nothing_else() {
        let text = format!(
            ": hello\n\ndata: {{\"choices\":[],\"x\":{{\"usage\":null}}}}\n\ndata: {{\"choices\":[{{\"usage\":1}}],\"usage\":null}}\r\n\r\n\
             data: {{\"usage\":{USAGE},\"choices\":[]}}\n\ndata: [DONE]\n\nrest"
        );
        let (passed, usage) = stream(Endpoint::Chat, true, &text);
        assert_eq!(
            passed,
            ": hello\n\ndata: {\"choices\":[],\"x\":{\"usage\":null}}\n\ndata: {\"choices\":[{\"usage\":1}]}\r\n\r\ndata: [DONE]\n\nrest"
        );
        assert_eq!(usage, Some(Usage { input: 3, output: 4, ..Usage::default() }));
        assert_eq!(stream(Endpoint::Chat, false, &text), (text, usage));
    }

    #[test]
    fn usage_that_comes_with_every_chunk_counts_only_at_the_end() {
        let chunk = format!("data: {{\"choices\":[{{}}],\"usage\":{USAGE}}}\n\n");
        assert_eq!(stream(Endpoint::Chat, true, &chunk), (chunk.clone(), None));
        let whole = format!("{chunk}data: [DONE]\n\n");
        assert!(stream(Endpoint::Chat, true, &whole).1.is_some());
    }

    #[test]
    fn a_message_that_breaks_off_before_its_end_says_too_little() {
        let start =
            "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n";
        let delta = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\n";
        let stop = "data: {\"type\":\"message_stop\"}\n\n";
        for (text, told) in [
            (format!("{start}{delta}{stop}"), Some(7)),
            (format!("{start}{delta}{delta}"), None),
            (format!("{start}{stop}"), None),
            (format!("{delta}{stop}"), None),
        ] {
            assert_eq!(stream(Endpoint::Messages, false, &text).1.map(|usage| usage.output), told, "{text}");
        }
    }

    #[test]
    fn an_answer_of_responses_tells_at_its_end_however_it_ends() {
        for (kind, told) in [("completed", true), ("incomplete", true), ("failed", true), ("created", false)] {
            let text = format!("data: {{\"type\":\"response.{kind}\",\"response\":{{\"usage\":{USAGE}}}}}\n\n");
            assert_eq!(stream(Endpoint::Responses, false, &text).1.is_some(), told, "{kind}");
        }
        let text = "data: {\"type\":\"response.failed\",\"response\":{\"usage\":null}}\n\n";
        assert_eq!(stream(Endpoint::Responses, false, text).1, None);
    }
}
