//! Whatever bytes arrive, in whatever chunks: nothing panics, what passes is what came, and a bound is never too low.

use bolero::check;
use serde_json::Value;

use super::{
    bound,
    bound::Bound,
    edit,
    route::Endpoint,
    scan,
    sse::{Piece, Splitter},
    tree::{self, Node},
};

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\"",
    "\"model\"",
    "\"usage\"",
    "\"mod\\u0065l\"",
    "\"\\\"}\"",
    "null",
    "true",
    "1",
    "-2.5e3",
    " ",
    "\n",
    "\"messages\"",
    "\"content\"",
    "\"type\"",
    "\"image_url\"",
    "\"data:image/png,xx\"",
    "\"ü\"",
    "{}",
    "[]",
    "\"text\"",
    "\"image\"",
    "\"source\"",
    "\"base64\"",
    "\"data\"",
    "\"tools\"",
    "\"n\"",
    "\"max_tokens\"",
];

/// Random bytes as text that is nearly JSON.
fn speak(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| JSON[usize::from(*byte) % JSON.len()]).collect()
}

/// Random bytes as a proper value: random text seldom is.
fn value(bytes: &mut std::slice::Iter<'_, u8>, depth: usize) -> Value {
    let Some(byte) = bytes.next() else { return Value::Null };
    match byte % 8 {
        0 => Value::Null,
        1 => Value::from(*byte),
        2 | 3 if depth < 6 => (0..byte / 64).map(|_| value(bytes, depth + 1)).collect(),
        4 | 5 if depth < 6 => Value::Object((0..=byte / 64).map(|_| (word(bytes), value(bytes, depth + 1))).collect()),
        _ => word(bytes).into(),
    }
}

fn word(bytes: &mut std::slice::Iter<'_, u8>) -> String {
    let byte = bytes.next().copied().unwrap_or(0);
    let words: Vec<&str> = JSON.iter().filter_map(|word| word.strip_prefix('"')?.strip_suffix('"')).collect();
    words[usize::from(byte) % words.len()].to_owned()
}

fn object(bytes: &[u8]) -> Value {
    let mut bytes = bytes.iter();
    Value::Object((0..4).map(|_| (word(&mut bytes), value(&mut bytes, 0))).collect())
}

#[test]
fn fuzz_edit() {
    check!().with_max_len(64).for_each(|bytes| {
        let nearly = speak(bytes);
        let _ = (scan::members(nearly.as_bytes()), scan::members(bytes), edit::remove(bytes, "a"));
        let spaced = serde_json::to_string_pretty(&object(bytes)).expect("JSON");
        for text in [object(bytes).to_string(), spaced, nearly] {
            let Ok(Value::Object(mut expected)) = serde_json::from_str::<Value>(&text) else { continue };
            if tree::parse(text.as_bytes()).is_err() {
                continue;
            }
            let set =
                edit::set(text.as_bytes(), &[("model", "\"x\"".into()), ("new", "[1]".into())]).expect("an object");
            let removed = edit::remove(text.as_bytes(), "usage");
            assert_eq!(removed.is_some(), expected.contains_key("usage"), "{text}");
            if let Some(removed) = removed {
                let mut less = expected.clone();
                less.remove("usage");
                assert_eq!(serde_json::from_slice::<Value>(&removed).expect("JSON"), Value::Object(less), "{text}");
            }
            expected.insert("model".into(), "x".into());
            expected.insert("new".into(), vec![1].into());
            assert_eq!(serde_json::from_slice::<Value>(&set).expect("JSON"), Value::Object(expected), "{text}");
        }
    });
}

#[test]
fn fuzz_capture() {
    check!().with_max_len(64).for_each(|bytes| {
        let text = object(bytes).to_string();
        let size = bytes.first().map_or(1, |byte| usize::from(*byte % 16) + 1);
        let mut capture = scan::Capture::new("usage");
        text.as_bytes().chunks(size).for_each(|chunk| capture.feed(chunk));
        let found = capture.found().map(|found| serde_json::from_slice::<Value>(found).expect("JSON"));
        let expected = serde_json::from_str::<Value>(&text).expect("JSON").get("usage").cloned();
        assert_eq!(found, expected, "{text}");
        let mut capture = scan::Capture::new("usage");
        capture.feed(bytes);
        capture.feed(speak(bytes).as_bytes());
    });
}

#[test]
fn fuzz_sse() {
    let words =
        ["data: ", "{}", "\n", "\n\n", "\r", "\r\n", "\r\n\r\n", ":", "[DONE]", "\u{feff}", "event: x", " ", "a"];
    check!().with_max_len(64).for_each(|bytes| {
        let text: String = bytes.iter().map(|byte| words[usize::from(*byte) % words.len()]).collect();
        for text in [text.as_bytes(), bytes] {
            let events = |size: usize| {
                let mut splitter = Splitter::bounded(24);
                let mut pieces: Vec<Piece> = text.chunks(size).flat_map(|chunk| splitter.push(chunk)).collect();
                pieces.extend(splitter.finish());
                let seen: Vec<_> = pieces
                    .iter()
                    .filter_map(|piece| match piece {
                        Piece::Event(event) => super::sse::data(event).map(std::borrow::Cow::into_owned),
                        Piece::Part(_) => None,
                    })
                    .collect();
                assert_eq!(pieces.into_iter().flat_map(Piece::into_bytes).collect::<Vec<u8>>(), text);
                seen
            };
            let whole = events(1);
            for size in [2, 3, 7] {
                // how large an event may be depends on the chunks it comes in, what a small one says does not
                let seen = events(size);
                assert!(whole.iter().all(|data| seen.contains(data)), "{text:?}");
            }
        }
    });
}

/// Every text that a model could be given to read, but for inline images.
fn readable(node: &Node<'_>, inline: &mut u64) -> u64 {
    match node {
        Node::Text(text) if text.starts_with("data:image/") => {
            *inline += text.len() as u64;
            0
        }
        Node::Text(text) => text.len() as u64,
        Node::List(items) => items.iter().map(|item| readable(item, inline)).sum(),
        Node::Map(members) => members.iter().map(|(key, value)| key.len() as u64 + readable(value, inline)).sum(),
        _ => 1,
    }
}

#[test]
fn fuzz_bound() {
    check!().with_max_len(96).for_each(|bytes| {
        for text in [object(bytes).to_string(), speak(bytes)] {
            let Ok(root) = tree::parse(text.as_bytes()) else { continue };
            for endpoint in [Endpoint::Chat, Endpoint::Responses, Endpoint::Embeddings] {
                for image_tokens in [None, Some(0), Some(7)] {
                    let Ok(Bound { input, choices, .. }) = bound::bound(endpoint, &root, text.len(), image_tokens)
                    else {
                        continue;
                    };
                    let mut inline = 0;
                    let readable = readable(&root, &mut inline);
                    assert!(input >= readable, "{text}");
                    assert!(input >= text.len() as u64 - inline, "{text}");
                    assert!((1..=128).contains(&choices));
                }
            }
            let _ = bound::bound(Endpoint::Messages, &root, text.len(), Some(7));
        }
    });
}
