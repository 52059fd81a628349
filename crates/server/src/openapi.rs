//! The OpenAPI document: collected from the routes, then completed with what holds for all of them.

use utoipa::{
    PartialSchema as _, ToSchema as _,
    openapi::{
        Components, Content, Info, License, OpenApi, Ref, RefOr, Response,
        path::{Operation, PathItem},
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
        tag::Tag,
    },
};

use crate::{problem, routes};

const ABOUT: &str = "A sandbox runtime for coding agents. Errors are RFC 9457 problem documents with a stable `code`, \
    one sentence about what happened and the fix.\n\n\
    Over the Unix socket the owner calls without a token; every TCP call needs one.";

const TAGS: [(&str, &str); 19] = [
    ("sandboxes", "Isolated environments: create, list, pause, stop, delete; and what holds them."),
    ("snapshots", "A sandbox's files as they were at one moment, and sandboxes made from them."),
    ("processes", "What runs in a sandbox: start, input, output, signals; and exec in one call."),
    ("files", "Files and trees of a sandbox, as its own user sees them."),
    ("ports", "Servers that run in a sandbox, reached from outside."),
    ("sessions", "Units of agent work: a name, sandboxes, terminals, approvals and a budget, deleted together."),
    ("network", "Where a sandbox may talk to: its rules, live."),
    ("secrets", "Written, never read back; the gateway puts them in on the way out. Managed by admins."),
    ("approvals", "Questions to people: answered once, by a person, before their deadline."),
    ("budgets", "What sessions may use and have used, their models, and what the gateway knows."),
    ("events", "The log of everything that happened, numbered without gaps."),
    ("templates", "Named recipes for sandboxes, and the isolation profiles they choose from."),
    ("pools", "Warm sandboxes of a template, waiting to be claimed."),
    ("tokens", "Who may call over TCP. For admins."),
    ("webhooks", "Who outside is told of events: in order, at least once, signed. For admins."),
    ("quarantine", "What the server found and its database does not know. For admins."),
    ("host", "What this host can enforce."),
    ("health", "Whether the server lives, is ready, and how it does."),
    ("sign-in", "From the printed link to a cookie."),
];

/// What the checked-in `openapi.json` is generated from.
pub(crate) fn openapi() -> OpenApi {
    let mut document = routes::documented();
    document.info = Info::new("Sandbar API", env!("CARGO_PKG_VERSION"));
    document.info.description = Some(ABOUT.to_owned());
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    document.info.license = Some(license);
    document.security = Some(vec![requirement("bearer"), requirement("cookie")]);
    document.tags = Some(TAGS.map(|(name, about)| described(name, about)).to_vec());
    let components = document.components.get_or_insert_with(Components::new);
    complete(components);
    // The router's `{*path}` takes slashes too; OpenAPI has no word for that.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    let ours = document.paths.paths.iter_mut().filter(|(path, _)| !crate::kagent::serves(path));
    ours.map(|(_, item)| item).flat_map(operations).for_each(finish);
    document
}

/// The document as it is checked in.
pub(crate) fn text() -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&openapi())? + "\n")
}

fn requirement(scheme: &str) -> SecurityRequirement {
    SecurityRequirement::new(scheme, [] as [&str; 0])
}

fn described(name: &str, about: &str) -> Tag {
    let mut tag = Tag::new(name);
    tag.description = Some(about.to_owned());
    tag
}

fn complete(components: &mut Components) {
    for (name, schema) in [
        (sandbar_api::Problem::name(), sandbar_api::Problem::schema()),
        (sandbar_api::Code::name(), sandbar_api::Code::schema()),
        // It travels inside a WebSocket, which no operation can say.
        (sandbar_api::ViewerFrame::name(), sandbar_api::ViewerFrame::schema()),
    ] {
        components.schemas.insert(name.into_owned(), schema);
    }
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("A token of `sandbar token create`, `sbt_…`.".to_owned());
    let cookie = ApiKeyValue::with_description(crate::access::COOKIE, "What POST /v1/login sets; for browsers.");
    for (name, scheme) in
        [("bearer", SecurityScheme::Http(bearer)), ("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)))]
    {
        components.security_schemes.insert(name.to_owned(), scheme.into());
    }
}

pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.head].into_iter().flatten()
}

/// Gives every failure the problem document as its body, and names the failures that come from what stands in front of
/// the handlers.
fn finish(operation: &mut Operation) {
    let guarded = operation.security.is_none();
    if guarded {
        mention(operation, "400", &["bad_request"]);
        mention(operation, "401", &["unauthenticated"]);
        mention(operation, "403", &["forbidden"]);
    }
    mention(operation, "403", &["foreign_host", "foreign_origin"]);
    mention(operation, "500", &["internal"]);
    if let Some(RefOr::T(body)) = &operation.request_body
        && body.content.contains_key("application/json")
    {
        mention(operation, "400", &["bad_json"]);
        mention(operation, "413", &["too_large"]);
        mention(operation, "415", &["unsupported_media"]);
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status.as_str() >= "400"
            && response.content.is_empty()
        {
            let schema = Ref::from_schema_name(sandbar_api::Problem::name());
            let content = Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(schema)));
            response.content.insert(problem::CONTENT_TYPE.to_owned(), content.into());
        }
    }
}

fn mention(operation: &mut Operation, status: &str, codes: &[&str]) {
    let entry = operation.responses.responses.entry(status.to_owned());
    let RefOr::T(response) = entry.or_insert_with(|| RefOr::T(Response::new(""))) else { return };
    for code in codes.iter().map(|code| format!("`{code}`")) {
        if !response.description.contains(&code) {
            let comma = if response.description.is_empty() { "" } else { ", " };
            response.description = format!("{}{comma}{code}", response.description);
        }
    }
}

mod tests {
    use super::*;

    #[test]
    fn the_checked_in_document_is_current() -> Result<(), Box<dyn std::error::Error>> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json");
        let current = text()?;
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(path, &current)?;
        }
        let checked_in = std::fs::read_to_string(path)?;
        let hint = "openapi.json is stale: run `UPDATE_OPENAPI=1 cargo test -p sandbar-server openapi`";
        assert!(checked_in == current, "{hint}");
        Ok(())
    }

    /// What the page shows must be a request that works.
    #[test]
    fn examples_of_requests_are_requests() -> Result<(), Box<dyn std::error::Error>> {
        let document = serde_json::to_value(openapi())?;
        let example = |name: &str| document["components"]["schemas"][name]["example"].clone();
        serde_json::from_value::<sandbar_api::CreateSandbox>(example("CreateSandbox"))?;
        serde_json::from_value::<sandbar_api::CreateSession>(example("CreateSession"))?;
        serde_json::from_value::<sandbar_api::StartProcess>(example("StartProcess"))?;
        serde_json::from_value::<sandbar_api::ExecRequest>(example("ExecRequest"))?;
        serde_json::from_value::<sandbar_api::CreateToken>(example("CreateToken"))?;
        serde_json::from_value::<sandbar_api::TerminalSize>(example("TerminalSize"))?;
        serde_json::from_value::<sandbar_api::AddRules>(example("AddRules"))?;
        serde_json::from_value::<sandbar_api::SetSecret>(example("SetSecret"))?;
        serde_json::from_value::<sandbar_api::AnswerApproval>(example("AnswerApproval"))?;
        serde_json::from_value::<sandbar_api::SetBudget>(example("SetBudget"))?;
        Ok(())
    }

    #[test]
    fn operations_are_complete_and_uniquely_named() {
        let mut document = openapi();
        let mut seen = std::collections::BTreeSet::new();
        for (path, item) in &mut document.paths.paths {
            for operation in operations(item) {
                let id = operation.operation_id.clone().unwrap_or_default();
                assert!(operation.summary.as_ref().is_some_and(|summary| !summary.is_empty()), "{path} {id}: summary");
                assert!(operation.tags.as_ref().is_some_and(|tags| tags.len() == 1), "{path} {id}: one tag");
                for tag in operation.tags.iter().flatten() {
                    assert!(TAGS.iter().any(|(name, _)| name == tag), "{path} {id}: {tag} is described");
                }
                assert!(seen.insert(id.clone()), "{path}: {id} twice");
            }
        }
    }
}
