//! Query parameters that a route does not have are refused, on every route alike: a misspelt one must not be ignored.

use std::{
    collections::{BTreeSet, HashMap},
    sync::LazyLock,
};

use axum::{
    extract::{MatchedPath, Query, Request},
    http::Method,
    middleware::Next,
    response::Response,
};
use serde::Deserialize;

use crate::{
    problem::{Result, bad_request},
    routes::DOCUMENT,
};

/// By path and method, in the document's spelling.
type Known = HashMap<String, HashMap<String, BTreeSet<String>>>;

#[derive(Deserialize)]
struct Document {
    paths: HashMap<String, HashMap<String, Operation>>,
}

#[derive(Deserialize)]
struct Operation {
    #[serde(default)]
    parameters: Vec<Parameter>,
}

#[derive(Deserialize)]
struct Parameter {
    name: String,
    r#in: String,
}

/// What the document says, which is what the handlers declare: a test compares them.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let document = serde_json::from_str::<Document>(DOCUMENT);
    let Document { paths } = document.unwrap_or_else(|error| unreachable!("openapi.json: {error}"));
    let names = |operation: Operation| {
        let in_query = operation.parameters.into_iter().filter(|parameter| parameter.r#in == "query");
        in_query.map(|parameter| parameter.name).collect()
    };
    let methods = |item: HashMap<String, Operation>| item.into_iter().map(|(method, it)| (method, names(it))).collect();
    paths.into_iter().map(|(path, item)| (path, methods(item))).collect()
});

/// What a route takes, if it is in the document. HEAD is answered by what answers GET.
fn known(route: &str, method: &Method) -> Option<&'static BTreeSet<String>> {
    let methods = KNOWN.get(&route.replace("{*", "{"))?;
    let own = methods.get(&method.as_str().to_ascii_lowercase());
    own.or_else(|| methods.get("get").filter(|_| method == Method::HEAD))
}

pub(crate) async fn refuse_unknown(request: Request, next: Next) -> Result<Response> {
    let matched = request.uri().query().and(request.extensions().get::<MatchedPath>());
    if let Some(names) = matched.and_then(|matched| known(matched.as_str(), request.method())) {
        let given = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).unwrap_or_default().0;
        if let Some((unknown, _)) = given.into_iter().find(|(name, _)| !names.contains(name)) {
            let detail = format!("`{}` is not a parameter of this route.", unknown.escape_debug());
            let fix = match names.is_empty() {
                true => "Leave it out: the route takes none.".to_owned(),
                false => format!("Use {}.", names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")),
            };
            return Err(bad_request(detail, fix).into());
        }
    }
    Ok(next.run(request).await)
}
