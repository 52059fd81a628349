//! What a vendor reports that a call used.

use serde::Deserialize;

/// As it was reported, however absurd: how much of it can count is for whoever keeps the books.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input, cached or not.
    pub input: u64,
    /// Of the input, what came from the vendor's cache.
    pub cached_input: u64,
    /// Of the input, what was written to the vendor's cache.
    pub cache_write: u64,
    pub output: u64,
}

/// As OpenAI writes it: in Chat Completions and Embeddings by the first names, in Responses by the second. Some who speak
/// its format write both.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OpenAiUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl OpenAiUsage {
    /// The input includes what was cached, the output includes reasoning.
    pub(super) fn usage(&self) -> Option<Usage> {
        let input = self.prompt_tokens.max(self.input_tokens)?;
        let details = self.prompt_tokens_details.as_ref().or(self.input_tokens_details.as_ref());
        let cached_input = details.and_then(|details| details.cached_tokens).unwrap_or(0).min(input);
        let output = self.completion_tokens.max(self.output_tokens).unwrap_or(0);
        Some(Usage { input, cached_input, cache_write: 0, output })
    }
}

/// As Anthropic writes it. In a stream the counts are cumulative, and later events may leave some out.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct AnthropicUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl AnthropicUsage {
    /// With what a later event says. Counts never fall.
    pub(super) fn then(self, later: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.max(later.input_tokens),
            cache_creation_input_tokens: self.cache_creation_input_tokens.max(later.cache_creation_input_tokens),
            cache_read_input_tokens: self.cache_read_input_tokens.max(later.cache_read_input_tokens),
            output_tokens: self.output_tokens.max(later.output_tokens),
        }
    }

    /// Without what was written: at the beginning of a stream that says nothing yet.
    pub(super) fn input_only(self) -> Self {
        Self { output_tokens: None, ..self }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let cached_input = self.cache_read_input_tokens.unwrap_or(0);
        let cache_write = self.cache_creation_input_tokens.unwrap_or(0);
        let input = self.input_tokens?.saturating_add(cached_input).saturating_add(cache_write);
        Some(Usage { input, cached_input, cache_write, output: self.output_tokens? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openai(text: &str) -> Option<Usage> {
        serde_json::from_str::<OpenAiUsage>(text).ok()?.usage()
    }

    fn anthropic(text: &str) -> Option<Usage> {
        serde_json::from_str::<AnthropicUsage>(text).ok()?.usage()
    }

    #[test]
    fn both_ways_of_openai_are_read() {
        let chat = openai(
            r#"{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,
            "prompt_tokens_details":{"cached_tokens":6,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":3}}"#,
        );
        assert_eq!(chat, Some(Usage { input: 10, cached_input: 6, cache_write: 0, output: 4 }));
        let responses = openai(r#"{"input_tokens":7,"input_tokens_details":{"cached_tokens":99},"output_tokens":2}"#);
        assert_eq!(responses, Some(Usage { input: 7, cached_input: 7, cache_write: 0, output: 2 }));
        let embeddings = openai(r#"{"prompt_tokens":5,"total_tokens":5}"#);
        assert_eq!(embeddings, Some(Usage { input: 5, ..Usage::default() }));
    }

    #[test]
    fn anthropics_input_is_the_sum_of_its_kinds() {
        let text =
            r#"{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":8}"#;
        assert_eq!(anthropic(text), Some(Usage { input: 123, cached_input: 100, cache_write: 20, output: 8 }));
        let start: AnthropicUsage = serde_json::from_str(r#"{"input_tokens":9,"output_tokens":1}"#).expect("usage");
        let delta: AnthropicUsage = serde_json::from_str(r#"{"input_tokens":0,"output_tokens":30}"#).expect("usage");
        assert_eq!(start.then(delta).usage(), Some(Usage { input: 9, output: 30, ..Usage::default() }));
    }

    #[test]
    fn what_is_absurd_is_told_as_it_is() {
        let most = r#"{"prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}"#;
        assert_eq!(openai(most), Some(Usage { input: u64::MAX, output: u64::MAX, ..Usage::default() }));
        let sum = anthropic(r#"{"input_tokens":18446744073709551615,"cache_read_input_tokens":9,"output_tokens":0}"#);
        assert_eq!(sum, Some(Usage { input: u64::MAX, cached_input: 9, ..Usage::default() }));
    }

    #[test]
    fn what_is_no_count_is_not_believed() {
        for text in [
            r#"{"prompt_tokens":-1}"#,
            r#"{"prompt_tokens":1.5}"#,
            r#"{"prompt_tokens":"7"}"#,
            r#"{"prompt_tokens":18446744073709551616}"#,
            r#"{"prompt_tokens":1,"completion_tokens":1e30}"#,
            r#"{"completion_tokens":1}"#,
        ] {
            assert_eq!(openai(text), None, "{text}");
        }
        assert_eq!(anthropic(r#"{"input_tokens":1}"#), None);
    }
}
