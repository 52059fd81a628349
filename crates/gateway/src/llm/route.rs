//! What is under `/llm/`: the vendors' endpoints by their own paths, and nothing else.

use hyper::Method;

use super::Format;

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

    /// The field that caps the output, where one is set if it is missing.
    pub(super) fn cap_field(self) -> Option<&'static str> {
        match self {
            Self::Chat => Some("max_completion_tokens"),
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
    let endpoint = match path {
        "/llm/openai/v1/models" if method == Method::GET => return Route::Models(Format::OpenAi),
        "/llm/anthropic/v1/models" if method == Method::GET => return Route::Models(Format::Anthropic),
        "/llm/openai/v1/chat/completions" => Endpoint::Chat,
        "/llm/openai/v1/responses" => Endpoint::Responses,
        "/llm/openai/v1/embeddings" => Endpoint::Embeddings,
        "/llm/anthropic/v1/messages" => Endpoint::Messages,
        "/llm/anthropic/v1/messages/count_tokens" => Endpoint::CountTokens,
        _ if path.starts_with("/llm/anthropic") => return Route::Nothing(Format::Anthropic),
        _ => return Route::Nothing(Format::OpenAi),
    };
    if method == Method::POST { Route::Call(endpoint) } else { Route::Nothing(endpoint.format()) }
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
