//! Walks what a model is given to read: counts its images, and names what no bound can be put on. Only where the format
//! has content is anything taken for an image: elsewhere, as in a tool's input, the same text is just text.

use super::{route::Endpoint, tree::Node};

/// Why a request cannot be bounded: the field, and a sentence that reads on after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unbounded {
    pub(super) field: String,
    pub(super) cause: &'static str,
}

impl Unbounded {
    pub(super) fn new(field: impl Into<String>, cause: &'static str) -> Self {
        Self { field: field.into(), cause }
    }

    fn below(mut self, place: impl std::fmt::Display) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{place}{dot}{}", self.field);
        self
    }
}

const FILE: &str =
    "only the vendor knows how much is in a file, so under a budget it is refused; send its text instead";
const AUDIO: &str = "audio is not counted by its bytes, so under a budget it is refused";
const STORED: &str = "it stands for something the vendor has stored, of any size, so under a budget it is refused";
const REASONING: &str = "without its `encrypted_content` it stands for reasoning the vendor has stored, of any size, so under a budget it is \
     refused; ask for it with `\"include\": [\"reasoning.encrypted_content\"]` and send it back";
const UNKNOWN: &str = "how much this type of content counts is not known, so under a budget it is refused";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) images: u64,
    /// Bytes that are images and no text.
    pub(super) inline: u64,
}

pub(super) fn tally(endpoint: Endpoint, root: &Node<'_>) -> Result<Tally, Unbounded> {
    let mut tally = Tally::default();
    let mut each = |field: &'static str, walk: fn(&mut Tally, &Node<'_>) -> Result<(), Unbounded>| match root.get(field)
    {
        Some(node) => walk(&mut tally, node).map_err(|unbounded| unbounded.below(field)),
        None => Ok(()),
    };
    match endpoint {
        Endpoint::Chat => each("messages", |tally, messages| items(tally, messages, Tally::chat_message))?,
        Endpoint::Responses => each("input", |tally, input| items(tally, input, Tally::response_item))?,
        Endpoint::Messages | Endpoint::CountTokens => {
            each("system", |tally, system| items(tally, system, Tally::anthropic_block))?;
            each("messages", |tally, messages| items(tally, messages, Tally::anthropic_message))?;
        }
        Endpoint::Embeddings => {}
    }
    Ok(tally)
}

/// Each of a list, or the one that is no list; a text is nothing but its bytes.
fn items(
    tally: &mut Tally,
    node: &Node<'_>,
    walk: fn(&mut Tally, &Node<'_>) -> Result<(), Unbounded>,
) -> Result<(), Unbounded> {
    match node {
        Node::List(list) => {
            for (index, item) in
                list.iter().enumerate().filter(|(_, item)| matches!(item, Node::Map(_) | Node::List(_)))
            {
                walk(tally, item).map_err(|unbounded| unbounded.below(format_args!("[{index}]")))?;
            }
            Ok(())
        }
        Node::Map(_) => walk(tally, node),
        _ => Ok(()),
    }
}

impl Tally {
    fn inside(
        &mut self,
        node: &Node<'_>,
        field: &str,
        walk: fn(&mut Self, &Node<'_>) -> Result<(), Unbounded>,
    ) -> Result<(), Unbounded> {
        let Some(inner) = node.get(field) else { return Ok(()) };
        items(self, inner, walk).map_err(|unbounded| unbounded.below(field))
    }

    fn chat_message(&mut self, message: &Node<'_>) -> Result<(), Unbounded> {
        if message.get("audio").is_some() {
            return Err(Unbounded::new("audio", STORED));
        }
        self.inside(message, "content", Self::openai_part)
    }

    fn response_item(&mut self, item: &Node<'_>) -> Result<(), Unbounded> {
        match item.kind() {
            "" if item.get("type").is_some() => Err(Unbounded::new("type", UNKNOWN)),
            // with nothing but an id it is what the vendor has stored under it
            "" | "message" if item.get("role").is_none() || item.get("content").is_none() => {
                Err(Unbounded::new(if item.get("id").is_some() { "id" } else { "type" }, STORED))
            }
            "" | "message" => self.inside(item, "content", Self::openai_part),
            "reasoning" => {
                let encrypted = item.get("encrypted_content").and_then(Node::text).unwrap_or_default();
                if encrypted.is_empty() { Err(Unbounded::new("encrypted_content", REASONING)) } else { Ok(()) }
            }
            "function_call_output" | "custom_tool_call_output" | "computer_call_output" => {
                self.inside(item, "output", Self::openai_part)
            }
            "function_call"
            | "custom_tool_call"
            | "computer_call"
            | "local_shell_call"
            | "local_shell_call_output"
            | "shell_call"
            | "shell_call_output"
            | "apply_patch_call"
            | "apply_patch_call_output" => Ok(()),
            "item_reference" => Err(Unbounded::new("type", STORED)),
            _ => Err(Unbounded::new("type", UNKNOWN)),
        }
    }

    fn openai_part(&mut self, part: &Node<'_>) -> Result<(), Unbounded> {
        match part.kind() {
            "text" | "input_text" | "output_text" | "refusal" => Ok(()),
            "image_url" | "input_image" | "computer_screenshot" => {
                if part.get("file_id").is_some() {
                    return Err(Unbounded::new("file_id", STORED));
                }
                let image = part.get("image_url");
                let url = image.and_then(|image| image.get("url").unwrap_or(image).text()).unwrap_or_default();
                self.image(if url.starts_with("data:image/") { url.len() } else { 0 });
                Ok(())
            }
            "input_file" | "file" => Err(Unbounded::new("type", FILE)),
            "input_audio" => Err(Unbounded::new("type", AUDIO)),
            _ => Err(Unbounded::new("type", UNKNOWN)),
        }
    }

    fn anthropic_message(&mut self, message: &Node<'_>) -> Result<(), Unbounded> {
        self.inside(message, "content", Self::anthropic_block)
    }

    fn anthropic_block(&mut self, block: &Node<'_>) -> Result<(), Unbounded> {
        let source = block.get("source").map(Node::kind).unwrap_or_default();
        match (block.kind(), source) {
            ("text" | "thinking" | "redacted_thinking" | "tool_use" | "search_result", _) => Ok(()),
            ("tool_result", _) => self.inside(block, "content", Self::anthropic_block),
            ("image", "base64") => {
                let data = block.get("source").and_then(|source| source.get("data")).and_then(Node::text);
                self.image(data.map_or(0, str::len));
                Ok(())
            }
            ("image", "url") => {
                self.image(0);
                Ok(())
            }
            ("document", "text") => Ok(()),
            ("document", "content") => {
                let Some(source) = block.get("source") else { return Ok(()) };
                self.inside(source, "content", Self::anthropic_block).map_err(|unbounded| unbounded.below("source"))
            }
            ("image" | "document", _) => Err(Unbounded::new("source.type", FILE)),
            _ => Err(Unbounded::new("type", UNKNOWN)),
        }
    }

    fn image(&mut self, inline: usize) {
        self.images += 1;
        self.inline = self.inline.saturating_add(inline as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::tree;

    fn of(endpoint: Endpoint, text: &str) -> Result<Tally, Unbounded> {
        tally(endpoint, &tree::parse(text.as_bytes()).expect("JSON"))
    }

    #[test]
    fn images_are_found_where_content_is() {
        let chat = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},
            {"type":"image_url","image_url":{"url":"https://x.test/y.png"}}]},{"role":"user","content":"z"}]}"#;
        assert_eq!(of(Endpoint::Chat, chat), Ok(Tally { images: 2, inline: 26 }));
        let responses = r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA"}]},
            {"type":"function_call_output","call_id":"1","output":[{"type":"input_image","image_url":"https://x.test/"}]},
            {"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:image/png,A"}}]}"#;
        assert_eq!(of(Endpoint::Responses, responses), Ok(Tally { images: 3, inline: 40 }));
        let messages = r#"{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[
            {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},
            {"type":"tool_result","tool_use_id":"1","content":[{"type":"image","source":{"type":"url","url":"https://x.test"}}]},
            {"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"base64","data":"AA"}}]}}]}]}"#;
        assert_eq!(of(Endpoint::Messages, messages), Ok(Tally { images: 3, inline: 6 }));
    }

    #[test]
    fn text_that_looks_like_an_image_stays_text() {
        let hidden = r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":
            {"type":"image","source":{"type":"base64","data":"a long text that a model would read"}}}]}]}"#;
        assert_eq!(of(Endpoint::Messages, hidden), Ok(Tally::default()));
        let text =
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:text/plain,a long text"}}]}]}"#;
        assert_eq!(of(Endpoint::Chat, text), Ok(Tally { images: 1, inline: 0 }));
    }

    #[test]
    fn what_the_vendor_has_stored_is_named_however_it_is_meant() {
        for (item, field) in [
            (r#"{"id":"msg_1"}"#, "id"),
            (r#"{"type":null,"id":"rs_1"}"#, "id"),
            (r#"{"id":"msg_1","role":"assistant"}"#, "id"),
            (r#"{"id":"msg_1","role":"assistant","content":null}"#, "id"),
            (r#"{"id":"msg_1","content":"x"}"#, "id"),
            (r#"{"type":"message","id":"msg_1"}"#, "id"),
            (r#"{}"#, "type"),
            (r#"{"type":7,"role":"user","content":"x"}"#, "type"),
            (r#"{"type":"reasoning","id":"rs_1","summary":[]}"#, "encrypted_content"),
            (r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null}"#, "encrypted_content"),
            (r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":""}"#, "encrypted_content"),
            (r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":["x"]}"#, "encrypted_content"),
        ] {
            let refused = of(Endpoint::Responses, &format!(r#"{{"input":[{item}]}}"#)).expect_err(item);
            assert_eq!(refused.field, format!("input[0].{field}"), "{item}");
        }
        for item in [
            r#"{"role":"user","content":"x"}"#,
            r#"{"type":null,"role":"user","content":[]}"#,
            r#"{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]}"#,
            r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}"#,
        ] {
            assert_eq!(of(Endpoint::Responses, &format!(r#"{{"input":[{item}]}}"#)), Ok(Tally::default()), "{item}");
        }
    }

    #[test]
    fn what_has_no_bound_is_named() {
        for (endpoint, text, field) in [
            (
                Endpoint::Chat,
                r#"{"messages":[{},{"content":[{"type":"file","file":{"file_id":"f"}}]}]}"#,
                "messages[1].content[0].type",
            ),
            (Endpoint::Chat, r#"{"messages":[{"content":[{"type":"input_audio"}]}]}"#, "messages[0].content[0].type"),
            (Endpoint::Chat, r#"{"messages":[{"audio":{"id":"a"}}]}"#, "messages[0].audio"),
            (Endpoint::Responses, r#"{"input":[{"type":"item_reference","id":"i"}]}"#, "input[0].type"),
            (
                Endpoint::Responses,
                r#"{"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]}"#,
                "input[0].content[0].type",
            ),
            (
                Endpoint::Responses,
                r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_image","file_id":"f"}]}]}"#,
                "input[0].content[0].file_id",
            ),
            (
                Endpoint::Messages,
                r#"{"messages":[{"content":[{"type":"document","source":{"type":"base64"}}]}]}"#,
                "messages[0].content[0].source.type",
            ),
            (
                Endpoint::Messages,
                r#"{"messages":[{"content":[{"type":"image","source":{"type":"file","file_id":"f"}}]}]}"#,
                "messages[0].content[0].source.type",
            ),
            (
                Endpoint::Messages,
                r#"{"messages":[{"content":[{"type":"tool_result","content":[{"type":"container_upload"}]}]}]}"#,
                "messages[0].content[0].content[0].type",
            ),
        ] {
            assert_eq!(of(endpoint, text).expect_err(text).field, field);
        }
    }
}
