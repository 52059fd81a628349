//! From a request's bytes to the call that is made: which model at which upstream, what is reserved for it, and the very
//! bytes that are sent. Pure.

use bytes::Bytes;
use sandbar_policy::Amount;

use super::{
    Catalogue, Model, bound,
    bound::Bound,
    edit,
    refusal::Refusal,
    route::Endpoint,
    select::{self, Selected},
    tree::{self, Node},
    unbounded,
};
use crate::{Held, Reserve};

/// Names that are read here. Written in another case a vendor might still take them for these.
const READ: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "messages",
    "input",
    "system",
    "tools",
    "functions",
    "thinking",
    "previous_response_id",
    "conversation",
    "prompt",
    "container",
    "mcp_servers",
    "web_search_options",
    "context_management",
    "prediction",
    "audio",
    "background",
    "service_tier",
    "speed",
    "modalities",
    "inference_geo",
];

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) selected: Selected,
    pub(super) reserve: Reserve,
    pub(super) body: Bytes,
    /// Usage is asked for on the client's behalf: what comes of it is not for the client.
    pub(super) hide_usage: bool,
}

pub(super) fn plan(
    endpoint: Endpoint,
    body: Bytes,
    catalogue: &Catalogue,
    switched: Option<&str>,
    held: &Held,
) -> Result<Plan, Refusal> {
    let root =
        tree::parse(&body).map_err(|error| Refusal::invalid(format!("the request is not proper JSON: {error}")))?;
    let asked = asked_model(&root)?;
    // a model that writes is no replacement for one that embeds
    let switched = switched.filter(|_| endpoint != Endpoint::Embeddings);
    let selected = select::select(catalogue, endpoint.format(), asked, switched)?;
    let mut edits = Vec::new();
    if selected.vendor_name != asked {
        edits.push(("model", Node::quote(&selected.vendor_name)));
    }
    let (input, output) = match *held {
        Held::Budget { left, priced } => {
            let (bound, missing) = within(endpoint, &root, body.len(), &selected, left, priced)?;
            edits.extend(missing.map(|(field, cap)| (field, cap.to_string())));
            let cap = missing.map(|(_, cap)| cap).or(bound.cap).unwrap_or(0);
            (bound.input, bound.choices.saturating_mul(cap))
        }
        Held::Counted => {
            let bound = bound::bound(endpoint, &root, body.len(), image_tokens(&selected));
            let bound = bound.unwrap_or(Bound::of_bytes(body.len()));
            let most = selected.model.as_ref().and_then(|model| model.max_output);
            let cap = bound.cap.or(most).filter(|_| endpoint.cap_field().is_some()).unwrap_or(0);
            (bound.input, bound.choices.saturating_mul(cap))
        }
    };
    let options = (endpoint == Endpoint::Chat).then(|| usage_option(&root, &body)).flatten();
    let hide_usage = options.is_some();
    edits.extend(options.map(|options| ("stream_options", options)));
    let price = selected.model.as_ref().and_then(|model| model.price);
    let bound =
        Amount { tokens: input.saturating_add(output), micros: price.map_or(0, |price| price.at_most(input, output)) };
    drop(root);
    let body = if edits.is_empty() { body } else { edited(&body, &edits)? };
    let reserve = Reserve { model: selected.name.clone(), upstream: selected.upstream_name.clone(), bound };
    Ok(Plan { selected, reserve, body, hide_usage })
}

fn asked_model<'r>(root: &'r Node<'_>) -> Result<&'r str, Refusal> {
    if !matches!(root, Node::Map(_)) {
        return Err(Refusal::invalid("the request is not a JSON object"));
    }
    for (name, _) in root.members() {
        let lower = name.to_ascii_lowercase();
        if *name != lower && READ.contains(&lower.as_str()) {
            return Err(Refusal::field(name, format_args!("write it `{lower}`")));
        }
    }
    let Some(model) = root.get("model") else {
        return Err(Refusal::field("model", "it is missing"));
    };
    model.text().ok_or_else(|| Refusal::field("model", "it must be a text"))
}

/// The bound under a budget, and the cap that has to be set because the request has none.
fn within(
    endpoint: Endpoint,
    root: &Node<'_>,
    bytes: usize,
    selected: &Selected,
    left: u64,
    priced: bool,
) -> Result<(Bound, Option<(&'static str, u64)>), Refusal> {
    let name = &selected.name;
    if priced && selected.model.as_ref().is_none_or(|model| model.price.is_none()) {
        return Err(Refusal::field(
            "model",
            format_args!("a budget in dollars is in force and no price is configured for `{name}` (its `price`)"),
        ));
    }
    let refuse = |unbounded: super::content::Unbounded| Refusal::field(&unbounded.field, unbounded.cause);
    unbounded::check(endpoint, root, priced).map_err(refuse)?;
    let bound = bound::bound(endpoint, root, bytes, image_tokens(selected)).map_err(refuse)?;
    let (Some(field), None) = (endpoint.cap_field(), bound.cap) else { return Ok((bound, None)) };
    if endpoint == Endpoint::Messages {
        return Err(Refusal::field(field, "it is missing, and a budget needs it"));
    }
    let most = selected.model.as_ref().and_then(|model| model.max_output).unwrap_or(u64::MAX);
    let fits = left.saturating_sub(bound.input) / bound.choices;
    // with nothing left the least is asked for, so that the books refuse it with their numbers
    let cap = most.min(fits).max(endpoint.least_cap());
    if cap > bound::LARGEST_CAP {
        return Err(Refusal::field(
            field,
            format_args!("a budget needs it, and for `{name}` nothing is configured in its place (`max_output`)"),
        ));
    }
    Ok((bound, Some((field, cap))))
}

/// Nothing where nothing is configured of the model at all.
fn image_tokens(selected: &Selected) -> Option<u64> {
    selected.model.as_ref().map(|Model { image_tokens, .. }| *image_tokens)
}

/// `stream_options` as they have to be for a stream to report usage; nothing if it does already.
fn usage_option(root: &Node<'_>, body: &[u8]) -> Option<String> {
    if root.get("stream") != Some(&Node::Bool(true)) {
        return None;
    }
    let Some(options) = root.get("stream_options") else {
        return Some(r#"{"include_usage":true}"#.into());
    };
    if options.get("include_usage") == Some(&Node::Bool(true)) {
        return None;
    }
    // what is no object the vendor will refuse by itself
    let options = edit::set(edit::value(body, "stream_options")?, &[("include_usage", "true".into())])?;
    String::from_utf8(options).ok()
}

fn edited(body: &[u8], edits: &[(&str, String)]) -> Result<Bytes, Refusal> {
    let edited = edit::set(body, edits).ok_or_else(|| Refusal::invalid("the request is not a JSON object"))?;
    Ok(edited.into())
}
