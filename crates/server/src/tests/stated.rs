//! Compares what a test was answered with what the document states: each test that asks the router checks the document too.

use std::sync::LazyLock;

use serde_json::Value;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json"));
    serde_json::from_str(text).unwrap_or_default()
});

/// Panics unless the operation, if it is one, states the status, and the problem's code with it.
pub(crate) fn check(method: &str, path: &str, status: u16, body: &[u8]) {
    let Some(operation) = operation(method, path) else { return };
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let code = problem["code"].as_str().filter(|_| status >= 400);
    // The router did not take it for one of the operation's paths.
    if matches!(code, Some("unknown_route" | "method_not_allowed")) {
        return;
    }
    let stated = &operation["responses"][status.to_string()];
    assert!(stated.is_object(), "openapi.json does not state {status} of {method} {path}: {problem}");
    if let Some(code) = code {
        let codes = stated["description"].as_str().unwrap_or_default();
        assert!(
            codes.contains(&format!("`{code}`")),
            "openapi.json does not state {code} of {method} {path}: {problem}"
        );
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or(path);
    let paths = DOCUMENT["paths"].as_object()?;
    let item = paths.iter().find(|(template, _)| matches(template, path))?.1;
    let method = method.to_ascii_lowercase();
    // HEAD is answered by what answers GET.
    item.get(&method).or_else(|| item.get("get").filter(|_| method == "head"))
}

fn matches(template: &str, path: &str) -> bool {
    let mut given = path.split('/');
    for part in template.split('/') {
        let Some(found) = given.next() else { return false };
        match part {
            // It takes slashes too.
            "{path}" => return !found.is_empty(),
            parameter if parameter.starts_with('{') && !found.is_empty() => {}
            literal if literal == found => {}
            _ => return false,
        }
    }
    given.next().is_none()
}
