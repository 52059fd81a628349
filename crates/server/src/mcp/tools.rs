//! What rmcp asks of a server: who it is, which tools it has, and to call one. A tool that fails says so in its result,
//! where the model reads it and can do better; only a tool that does not exist is an error of the protocol.

use axum::http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
        CompleteRequestParams, CompleteResult, ContentBlock, DiscoverResult, Implementation, JsonObject,
        ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
        ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
        ServerConfig,
    },
    service::RequestContext,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Place, edit, exec, files, listing, output, processes, progress::Progress, read, search, skills, told::Told,
};

const INSTRUCTIONS: &str = "A sandbox of its own for this session: commands run and files live there and stay between calls. Relative paths start at /workspace. The network may be limited to what a policy allows.";

/// A result, or what to tell the model about why there is none.
pub(super) type Outcome = Result<CallToolResult, String>;

pub(super) struct Tools {
    version: &'static str,
    told: Told,
}

impl Tools {
    pub(super) fn new(version: &'static str) -> Self {
        Self { version, told: Told::default() }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
            .with_server_info(Implementation::new("sandbar", self.version))
            .with_instructions(INSTRUCTIONS)
    }

    /// Without a handshake there is no session to send anything to: those clients are told not to keep the list.
    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let mut config = self.get_info();
        config.capabilities = ServerCapabilities::builder().enable_tools().build();
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), config))
    }

    // rmcp answers these with empty lists, which a server does only if it declared to have such things.
    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let place = place(&context)?;
        let skills = skills::described(&place).await;
        let mut listed = ListToolsResult::with_all_items(listing::tools(&skills));
        self.told.is(&skills);
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
        place.begun.notify_one();
        let (name, arguments) = (request.name, request.arguments.unwrap_or_default());
        let progress = Progress::of(&context);
        let call = async {
            Ok(match name.as_ref() {
                "exec" => with(&name, arguments, |ask| exec::run(&place, ask, &progress)).await,
                "read_file" => with(&name, arguments, |ask| read::read(&place, ask)).await,
                "write_file" => with(&name, arguments, |ask| files::write(&place, ask)).await,
                "edit_file" => with(&name, arguments, |ask| edit::replace(&place, ask)).await,
                "list_dir" => with(&name, arguments, |ask| files::list(&place, ask)).await,
                "glob" => with(&name, arguments, |ask| search::glob(&place, ask)).await,
                "grep" => with(&name, arguments, |ask| search::grep(&place, ask)).await,
                "start" => with(&name, arguments, |ask| processes::start(&place, ask)).await,
                "output" => with(&name, arguments, |ask| output::look(&place, ask, &progress)).await,
                "input" => with(&name, arguments, |ask| processes::input(&place, ask)).await,
                "stop" => with(&name, arguments, |ask| processes::stop(&place, ask)).await,
                "processes" => with(&name, arguments, |ask| processes::all(&place, ask)).await,
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
            turned_away = place.turned_away() => Err(turned_away.to_string()),
        };
        if ["exec", "write_file", "edit_file"].contains(&name.as_ref()) {
            self.told.look_later(place, context.peer);
        }
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
    let text =
        serde_json::to_string(value).map_err(|error| format!("The result cannot be written as JSON: {error}."))?;
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(object(value)?);
    Ok(result)
}

pub(super) fn object<T: Serialize>(value: &T) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| format!("The result cannot be written as JSON: {error}."))
}

pub(super) fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}
