//! What is under `/llm/`: the vendors' endpoints by their own paths, and nothing else.

use hyper::Method;

use super::{CapField, Format};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Responses,
    Embeddings,
    Messages,
    /// Free at the vendor, and not counted here.
    CountTokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Call(Endpoint),
    /// The configured models of a format.
    Models(Format),
    /// In the shape of the vendor it seems to be meant for.
    Nothing(Format),
}

impl Endpoint {
    const ALL: [Self; 5] = [Self::Chat, Self::Responses, Self::Embeddings, Self::Messages, Self::CountTokens];

    pub(super) fn format(self) -> Format {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings => Format::OpenAi,
            Self::Messages | Self::CountTokens => Format::Anthropic,
        }
    }

    /// After the upstream's own path.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Responses => "/responses",
            Self::Embeddings => "/embeddings",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
        }
    }

    /// Where clients find it.
    pub(super) fn own_path(self) -> &'static str {
        match self {
            Self::Chat => "/llm/openai/v1/chat/completions",
            Self::Responses => "/llm/openai/v1/responses",
            Self::Embeddings => "/llm/openai/v1/embeddings",
            Self::Messages => "/llm/anthropic/v1/messages",
            Self::CountTokens => "/llm/anthropic/v1/messages/count_tokens",
        }
    }

    /// The field that caps the output, where one is set if it is missing. `chat`: the one that the upstream obeys.
    pub(super) fn cap_field(self, chat: CapField) -> Option<&'static str> {
        match self {
            Self::Chat => Some(chat.as_str()),
            Self::Responses => Some("max_output_tokens"),
            Self::Messages => Some("max_tokens"),
            Self::Embeddings | Self::CountTokens => None,
        }
    }

    /// The smallest cap the vendor takes.
    pub(super) fn least_cap(self) -> u64 {
        if self == Self::Responses { 16 } else { 1 }
    }
}

/// What stands under a vendor's prefix, for those who ask for something else.
pub(super) fn there(format: Format) -> &'static str {
    match format {
        Format::OpenAi => {
            "POST /llm/openai/v1/chat/completions, /llm/openai/v1/responses and /llm/openai/v1/embeddings, \
             GET /llm/openai/v1/models"
        }
        Format::Anthropic => {
            "POST /llm/anthropic/v1/messages and /llm/anthropic/v1/messages/count_tokens, GET /llm/anthropic/v1/models"
        }
    }
}

pub(super) fn route(method: &Method, path: &str) -> Route {
    match (method, path) {
        (&Method::GET, "/llm/openai/v1/models") => return Route::Models(Format::OpenAi),
        (&Method::GET, "/llm/anthropic/v1/models") => return Route::Models(Format::Anthropic),
        _ => {}
    }
    let endpoint = Endpoint::ALL.into_iter().find(|endpoint| endpoint.own_path() == path);
    let meant = if path.starts_with("/llm/anthropic") { Format::Anthropic } else { Format::OpenAi };
    endpoint.filter(|_| method == Method::POST).map_or(Route::Nothing(meant), Route::Call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_there() {
        assert_eq!(route(&Method::POST, "/llm/openai/v1/responses"), Route::Call(Endpoint::Responses));
        assert_eq!(route(&Method::GET, "/llm/anthropic/v1/models"), Route::Models(Format::Anthropic));
        for path in ["/llm/openai/v1/files", "/llm/openai/v1/responses/", "/llm/", "/llm/openai/v1//responses"] {
            assert_eq!(route(&Method::POST, path), Route::Nothing(Format::OpenAi), "{path}");
        }
        assert_eq!(route(&Method::GET, "/llm/anthropic/v1/messages"), Route::Nothing(Format::Anthropic));
        assert_eq!(route(&Method::POST, "/llm/anthropic/v1/messages/batches"), Route::Nothing(Format::Anthropic));
    }
}
