//! The most a request can use. A token is at least a byte of it (as [`wide`] as a tokenizer may make it), an image at most
//! what is configured, and the output is capped: so what is reserved is never too little.

use super::{
    content::{self, Unbounded},
    route::Endpoint,
    tree::Node,
    wide,
};

/// Vendors put instructions of their own before tools and schemas: once for tools, for each kind of tool that is built into
/// the model, and once for an answer that has to have a form. They count as input (a few hundred tokens at most) and stand
/// nowhere in the request. Plain requests get none, and what frames their messages is less than their own JSON: a small
/// budget is not used up by a constant there.
const INSTRUCTIONS: u64 = 1024;
/// More choices are taken for a mistake.
const CHOICES: u64 = 128;
/// No model writes more; what is larger is no cap.
pub(super) const LARGEST_CAP: u64 = i32::MAX as u64;
/// Where nothing is configured: above what any vendor counts for an image.
pub(super) const IMAGE_TOKENS: u64 = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) input: u64,
    /// How many answers are written.
    pub(super) choices: u64,
    /// The most each can be; absent if the request does not say.
    pub(super) cap: Option<u64>,
}

impl Bound {
    /// Where no budget asks for more: what can be said of any request.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        Self { input: bytes as u64, choices: 1, cap: None }
    }
}

/// `image_tokens`: the most an image counts, if it is configured.
pub(super) fn bound(
    endpoint: Endpoint,
    root: &Node<'_>,
    bytes: usize,
    image_tokens: Option<u64>,
) -> Result<Bound, Unbounded> {
    let tally = content::tally(endpoint, root)?;
    if tally.images > 0 && image_tokens == Some(0) {
        return Err(Unbounded::new(
            "model",
            "how many tokens an image counts is not configured for it (`image_tokens`)",
        ));
    }
    // an image's bytes are no text, but only for a model that is known to read images
    let inline = if image_tokens.is_some() { tally.inline } else { 0 };
    let images = tally.images.saturating_mul(image_tokens.unwrap_or(IMAGE_TOKENS));
    let input = (bytes as u64).saturating_sub(inline).saturating_add(images);
    let input = input.saturating_add(instructions(root)).saturating_add(wide::growth(root));
    Ok(Bound { input, choices: choices(endpoint, root)?, cap: cap(endpoint, root)? })
}

fn instructions(root: &Node<'_>) -> u64 {
    let tools = [root.get("tools"), root.get("functions")].into_iter().flatten().flat_map(Node::list);
    let (mut any, mut built_in) = (0, 0_u64);
    for tool in tools {
        any = 1;
        built_in += u64::from(!matches!(tool.kind(), "" | "function" | "custom"));
    }
    INSTRUCTIONS.saturating_mul(built_in.saturating_add(any).saturating_add(u64::from(formed(root))))
}

/// Whether the answer has to have a form: each vendor and endpoint says so in its own place.
fn formed(root: &Node<'_>) -> bool {
    let inner = |outer: &str| root.get(outer).and_then(|outer| outer.get("format"));
    [root.get("response_format"), root.get("output_format"), inner("text"), inner("output_config")]
        .into_iter()
        .flatten()
        .any(|format| format.kind() != "text")
}

fn choices(endpoint: Endpoint, root: &Node<'_>) -> Result<u64, Unbounded> {
    match root.get("n") {
        Some(Node::Count(n @ 1..=CHOICES)) => Ok(*n),
        Some(_) if endpoint == Endpoint::Chat => Err(Unbounded::new("n", "it must be a whole number from 1 to 128")),
        _ => Ok(1),
    }
}

/// The larger one, where a vendor knows two names for it.
fn cap(endpoint: Endpoint, root: &Node<'_>) -> Result<Option<u64>, Unbounded> {
    let fields: &[&str] = match endpoint {
        Endpoint::Chat => &["max_completion_tokens", "max_tokens"],
        Endpoint::Responses => &["max_output_tokens"],
        Endpoint::Messages => &["max_tokens"],
        Endpoint::Embeddings | Endpoint::CountTokens => &[],
    };
    let mut cap = None;
    for field in fields {
        match root.get(field) {
            None => {}
            Some(Node::Count(count @ 1..=LARGEST_CAP)) => cap = cap.max(Some(*count)),
            Some(_) => return Err(Unbounded::new(*field, "it must be a whole number of tokens, at least 1")),
        }
    }
    let thinking = root.get("thinking").and_then(|thinking| thinking.get("budget_tokens"));
    match (endpoint, thinking, cap) {
        // interleaved thinking may go beyond the cap
        (Endpoint::Messages, Some(Node::Count(thinking)), Some(cap)) if *thinking > cap => {
            Ok(Some(cap.saturating_add(*thinking)))
        }
        _ => Ok(cap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::tree;

    fn of(endpoint: Endpoint, text: &str, image_tokens: Option<u64>) -> Result<Bound, Unbounded> {
        bound(endpoint, &tree::parse(text.as_bytes()).expect("JSON"), text.len(), image_tokens)
    }

    #[test]
    fn bytes_images_tools_and_choices_add_up() {
        let text = r#"{"n":3,"max_tokens":10,"max_completion_tokens":20}"#;
        assert_eq!(of(Endpoint::Chat, text, None), Ok(Bound { input: 50, choices: 3, cap: Some(20) }));
        let text = r#"{"tools":[{"type":"function"}],"max_output_tokens":16}"#;
        assert_eq!(of(Endpoint::Responses, text, None), Ok(Bound { input: 54 + 1024, choices: 1, cap: Some(16) }));
        let text = r#"{"tools":[{"name":"f"},{"type":"bash_20250124"}],"max_tokens":5,"thinking":{"budget_tokens":9}}"#;
        let bytes = text.len() as u64;
        assert_eq!(of(Endpoint::Messages, text, None), Ok(Bound { input: bytes + 2048, choices: 1, cap: Some(14) }));
        let text = r#"{"input":["a","b"],"n":-1}"#;
        assert_eq!(of(Endpoint::Embeddings, text, None), Ok(Bound::of_bytes(text.len())));
    }

    #[test]
    fn instructions_that_a_vendor_adds_are_counted_where_it_adds_some() {
        for (endpoint, text, added) in [
            (Endpoint::Chat, r#"{"response_format":{"type":"json_schema","json_schema":{}}}"#, 1024),
            (Endpoint::Chat, r#"{"response_format":{"type":"json_object"},"tools":[{"type":"function"}]}"#, 2048),
            (Endpoint::Chat, r#"{"response_format":{"type":"text"},"tools":[]}"#, 0),
            (Endpoint::Responses, r#"{"text":{"format":{"type":"json_schema","schema":{}}}}"#, 1024),
            (Endpoint::Responses, r#"{"text":{"format":{"type":"text"},"verbosity":"low"}}"#, 0),
            (Endpoint::Messages, r#"{"output_format":{"type":"json_schema"}}"#, 1024),
            (Endpoint::Messages, r#"{"output_config":{"effort":"low","format":{"type":"json_schema"}}}"#, 1024),
            (Endpoint::Messages, r#"{"output_config":{"effort":"low"}}"#, 0),
            (Endpoint::Chat, r#"{"messages":[{"role":"user","content":"hi"}]}"#, 0),
        ] {
            assert_eq!(of(endpoint, text, None).map(|bound| bound.input), Ok(text.len() as u64 + added), "{text}");
        }
    }

    #[test]
    fn characters_that_a_tokenizer_takes_apart_count_as_what_they_become() {
        let text = "{\"messages\":[{\"content\":\"\\ufdfa\u{fdfa}\"}]}";
        assert_eq!(of(Endpoint::Chat, text, None).map(|bound| bound.input), Ok(text.len() as u64 + 60));
    }

    #[test]
    fn an_inline_image_counts_as_an_image_only_where_images_are_configured() {
        let url = format!("data:image/png;base64,{}", "A".repeat(1000));
        let text = format!(r#"{{"messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#);
        let (bytes, inline) = (text.len() as u64, url.len() as u64);
        assert_eq!(of(Endpoint::Chat, &text, Some(700)).map(|bound| bound.input), Ok(bytes - inline + 700));
        assert_eq!(of(Endpoint::Chat, &text, None).map(|bound| bound.input), Ok(bytes + IMAGE_TOKENS));
        assert_eq!(of(Endpoint::Chat, &text, Some(0)).expect_err("not configured").field, "model");
    }

    #[test]
    fn odd_numbers_are_no_bound() {
        for (text, field) in [
            (r#"{"n":0}"#, "n"),
            (r#"{"n":1.0}"#, "n"),
            (r#"{"n":129}"#, "n"),
            (r#"{"n":"2"}"#, "n"),
            (r#"{"max_tokens":-1}"#, "max_tokens"),
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"max_completion_tokens":1e3}"#, "max_completion_tokens"),
            (r#"{"max_completion_tokens":18446744073709551615}"#, "max_completion_tokens"),
        ] {
            assert_eq!(of(Endpoint::Chat, text, None).expect_err(text).field, field);
        }
        assert_eq!(
            of(Endpoint::Chat, r#"{"n":null,"max_tokens":null}"#, None).map(|bound| (bound.choices, bound.cap)),
            Ok((1, None))
        );
    }
}
