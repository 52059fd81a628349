//! The OpenAPI document: collected from the routes, then completed with what holds for all of them.

mod bounds;
mod failures;
mod tests;

use sandbar_api::{Code, Control, Problem, ScreenFormat, ViewerFrame};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Components, Content, Info, License, OpenApi, Ref, RefOr, Schema, Server, ServerBuilder, ServerVariableBuilder,
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
    ("sign-in", "Browsers: from a link to a cookie, and out again."),
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
    document.servers = Some(servers());
    let components = document.components.get_or_insert_with(Components::new);
    complete(components);
    bounds::apply(components);
    // The router's `{*path}` takes slashes too; OpenAPI has no word for that.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            bounds::of_parameters(operation);
            if crate::kagent::serves(path) {
                failures::state_in_other_words(operation);
            } else {
                failures::state(path, method, operation);
                give_a_body(operation);
            }
        }
    }
    document
}

/// Where it is, if nobody says otherwise: what generated clients begin with.
fn servers() -> Vec<Server> {
    let scheme = ServerVariableBuilder::new().default_value("http").enum_values(Some(["http", "https"]));
    let address = ServerVariableBuilder::new()
        .default_value("127.0.0.1:7227")
        .description(Some("What `sandbar up` listens on, unless told otherwise."));
    vec![
        ServerBuilder::new()
            .url("{scheme}://{address}")
            .parameter("scheme", scheme)
            .parameter("address", address)
            .build(),
    ]
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
    let mut add = |(name, schema): (String, RefOr<Schema>)| drop(components.schemas.insert(name, schema));
    add(named::<Problem>());
    add(named::<Code>());
    // It travels inside a WebSocket, which no operation can say.
    add(named::<ViewerFrame>());
    // Schemas of parameters, which utoipa refers to and does not collect.
    add(named::<Control>());
    add(named::<ScreenFormat>());
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("A token of `sandbar token create`, `sbt_…`.".to_owned());
    let cookie = ApiKeyValue::with_description(
        crate::access::COOKIES[0],
        "What POST /v1/login sets, for browsers, at the one host name where it was set; with TLS `__Host-sandbar`.",
    );
    for (name, scheme) in
        [("bearer", SecurityScheme::Http(bearer)), ("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)))]
    {
        components.security_schemes.insert(name.to_owned(), scheme.into());
    }
}

fn named<T: ToSchema + PartialSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}

/// By method, as the document writes it.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let methods = [
        ("get", &mut item.get),
        ("put", &mut item.put),
        ("post", &mut item.post),
        ("delete", &mut item.delete),
        ("head", &mut item.head),
    ];
    methods.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Every failure has the problem document as its body.
fn give_a_body(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status.as_str() >= "400"
            && response.content.is_empty()
        {
            let schema = Ref::from_schema_name(Problem::name());
            let content = Content::new(Some(RefOr::<Schema>::Ref(schema)));
            response.content.insert(problem::CONTENT_TYPE.to_owned(), content.into());
        }
    }
}
