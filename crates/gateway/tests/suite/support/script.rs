//! What a request asks of the scripted upstream, and what it counts: words in, words out. Words of the form `verb:N` in the
//! prompt direct the play.

use std::time::Duration;

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Chat,
    Responses,
    Embeddings,
    Messages,
    CountTokens,
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) wire: Wire,
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) choices: u64,
    /// What it counts: a token for each word, 85 for each image.
    pub(crate) input: u64,
    /// `cached:N`, of the input.
    pub(crate) cached: u64,
    /// Words of each choice, as many as `write:N` says (12 without), or the cap.
    pub(crate) words: u64,
    /// The cap was in the way.
    pub(crate) capped: bool,
    /// `call:NAME`: the model calls that tool.
    pub(crate) tool: Option<String>,
    /// `fail:STATUS`.
    pub(crate) fail: Option<u16>,
    /// `bill:1`: with its error it tells of usage.
    pub(crate) bill: bool,
    /// `echo:1`: with its error it repeats the key it was sent, as some servers do.
    pub(crate) echo: bool,
    /// `slow:MS`: before the answer.
    pub(crate) slow: Duration,
    /// `pause:MS`: between two events.
    pub(crate) pause: Duration,
    /// `break:N`: the connection is cut after N events or bytes; `break:0` before the answer.
    pub(crate) cut: Option<u64>,
    /// `silent:1`: no usage is reported.
    pub(crate) silent: bool,
    /// `zip:1`: the answer says it is compressed.
    pub(crate) zip: bool,
    /// `pad:BYTES`: each word is that much longer.
    pub(crate) pad: usize,
}

impl Script {
    pub(crate) fn read(wire: Wire, request: &Value) -> Self {
        let mut texts = Vec::new();
        let mut images = 0;
        for field in ["messages", "input", "system", "instructions"] {
            gather(&request[field], &mut texts, &mut images);
        }
        let words: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
        let told = |verb: &str| words.iter().rev().find_map(|word| word.strip_prefix(verb)?.strip_prefix(':'));
        let number = |verb: &str| told(verb).and_then(|number| number.parse::<u64>().ok());
        let cap = match wire {
            Wire::Chat => request["max_completion_tokens"].as_u64().or(request["max_tokens"].as_u64()),
            Wire::Responses => request["max_output_tokens"].as_u64(),
            Wire::Messages => request["max_tokens"].as_u64(),
            Wire::Embeddings | Wire::CountTokens => Some(0),
        };
        let (input, wanted) = (words.len() as u64 + 85 * images, number("write").unwrap_or(12));
        Self {
            wire,
            model: request["model"].as_str().unwrap_or_default().to_owned(),
            stream: request["stream"] == true,
            include_usage: request["stream_options"]["include_usage"] == true,
            choices: request["n"].as_u64().unwrap_or(1),
            input,
            cached: number("cached").unwrap_or(0).min(input),
            words: wanted.min(cap.unwrap_or(u64::MAX)),
            capped: cap.is_some_and(|cap| cap < wanted),
            tool: told("call").map(str::to_owned),
            fail: number("fail").and_then(|status| u16::try_from(status).ok()),
            bill: number("bill").is_some(),
            echo: number("echo").is_some(),
            slow: Duration::from_millis(number("slow").unwrap_or(0)),
            pause: Duration::from_millis(number("pause").unwrap_or(0)),
            cut: number("break"),
            silent: number("silent").is_some(),
            zip: number("zip").is_some(),
            pad: number("pad").unwrap_or(0) as usize,
        }
    }

    pub(crate) fn output(&self) -> u64 {
        self.words * self.choices
    }

    pub(crate) fn text(&self) -> String {
        (0..self.words).map(|number| self.word(number)).collect()
    }

    pub(crate) fn word(&self, number: u64) -> String {
        format!("word{number}{} ", "x".repeat(self.pad))
    }
}

/// All text below `content`, `text` and the like, and how many images.
fn gather<'v>(value: &'v Value, texts: &mut Vec<&'v str>, images: &mut u64) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| gather(item, texts, images)),
        Value::Object(members) => {
            if matches!(members.get("type").and_then(Value::as_str), Some("image_url" | "input_image" | "image")) {
                *images += 1;
                return;
            }
            for name in ["content", "text", "output", "arguments", "input"] {
                gather(members.get(name).unwrap_or(&Value::Null), texts, images);
            }
        }
        _ => {}
    }
}
