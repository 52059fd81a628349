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
use utoipa::openapi::{
    RefOr,
    path::{Operation, ParameterIn},
};

use crate::{
    openapi,
    problem::{Result, bad_request},
};

type Known = HashMap<(String, Method), BTreeSet<String>>;

/// What the document says, which is what the handlers declare.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let mut known = Known::new();
    for (path, item) in openapi::openapi().paths.paths {
        for (method, operation) in [
            (Method::GET, &item.get),
            (Method::HEAD, &item.get),
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
        ] {
            if let Some(operation) = operation {
                known.insert((path.clone(), method), names(operation));
            }
        }
    }
    known
});

fn names(operation: &Operation) -> BTreeSet<String> {
    let parameters = operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter.name.clone()),
        _ => None,
    });
    parameters.collect()
}

pub(crate) async fn refuse_unknown(request: Request, next: Next) -> Result<Response> {
    if let (Some(_), Some(matched)) = (request.uri().query(), request.extensions().get::<MatchedPath>()) {
        let route = matched.as_str().replace("{*", "{");
        if let Some(names) = KNOWN.get(&(route, request.method().clone())) {
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
    }
    Ok(next.run(request).await)
}
