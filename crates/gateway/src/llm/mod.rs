//! The LLM endpoints: OpenAI Chat Completions, Responses and Embeddings under `/llm/openai/v1/`, Anthropic Messages under
//! `/llm/anthropic/v1/`. Bodies pass byte for byte but for what a budget needs.

mod catalogue;
mod usage;

pub use catalogue::{Catalogue, Format, Model, Upstream};
pub use usage::Usage;
