//! What rmcp asks of a server: who it is, which tools it has, and to call one. A tool that fails says so in its result,
//! where the model reads it and can do better; only a tool that does not exist is an error of the protocol.

use axum::http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Place, edit, exec, files, listing, skills};

const INSTRUCTIONS: &str = "A sandbox of its own for this session: commands run and files live there and stay between calls. Relative paths start at /workspace. The network may be limited to what a policy allows.";

/// A result, or what to tell the model about why there is none.
pub(super) type Outcome = Result<CallToolResult, String>;

pub(super) struct Tools {
    version: &'static str,
}

impl Tools {
    pub(super) fn new(version: &'static str) -> Self {
        Self { version }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("sandbar", self.version))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let place = place(&context)?;
        let mut listed = ListToolsResult::with_all_items(listing::tools(&skills::described(&place).await));
        // Skills come and go with files.
        (listed.ttl_ms, listed.cache_scope) = (Some(0), Some(CacheScope::Private));
        Ok(listed)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let place = place(&context)?;
        let (name, arguments) = (request.name, request.arguments.unwrap_or_default());
        let call = async {
            Ok(match name.as_ref() {
                "exec" => with(&name, arguments, |ask| exec::run(&place, ask)).await,
                "read_file" => with(&name, arguments, |ask| files::read(&place, ask)).await,
                "write_file" => with(&name, arguments, |ask| files::write(&place, ask)).await,
                "edit_file" => with(&name, arguments, |ask| edit::replace(&place, ask)).await,
                "list_dir" => with(&name, arguments, |ask| files::list(&place, ask)).await,
                "get_skill" => with(&name, arguments, |ask| skills::load(&place, ask)).await,
                other => {
                    let message = format!("There is no tool `{}`; tools/list names them.", other.escape_debug());
                    return Err(ErrorData::invalid_params(message, None));
                }
            })
        };
        // Dropping the call undoes what can be undone: a command is killed with all it started, a write is not made.
        let outcome = tokio::select! {
            outcome = call => outcome?,
            () = context.ct.cancelled() => Err("The call was cancelled.".to_owned()),
        };
        Ok(outcome.unwrap_or_else(|text| CallToolResult::error(vec![ContentBlock::text(text)])).into())
    }
}

/// Of the request itself, never of the MCP session that it came in.
fn place(context: &RequestContext<RoleServer>) -> Result<Place, ErrorData> {
    let parts = context.extensions.get::<Parts>();
    let place = parts.and_then(|parts| parts.extensions.get::<Place>()).cloned();
    place.ok_or_else(|| ErrorData::internal_error("The request does not say which session it is for.", None))
}

async fn with<T: DeserializeOwned>(name: &str, arguments: JsonObject, tool: impl AsyncFnOnce(T) -> Outcome) -> Outcome {
    match serde_json::from_value(arguments.into()) {
        Ok(ask) => tool(ask).await,
        Err(error) => Err(format!("The arguments of {name} were not understood: {error}.")),
    }
}

/// The same twice, as text for those that know only that.
pub(super) fn structured<T: Serialize>(value: &T) -> Outcome {
    let told = |error: serde_json::Error| format!("The result cannot be written as JSON: {error}.");
    let text = serde_json::to_string(value).map_err(told)?;
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(serde_json::to_value(value).map_err(told)?);
    Ok(result)
}

pub(super) fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}
