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

/// Of a model: where an upstream takes any, it is kept in the books as it was asked for.
const LONGEST_NAME: usize = 256;
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
    let planned = reserved(endpoint, &root, &body, &selected, held).map_err(|refusal| refusal.at(&selected.upstream));
    let (reserve, mut edits) = planned?;
    if selected.vendor_name != asked {
        edits.push(("model", Node::quote(&selected.vendor_name)));
    }
    let options = (endpoint == Endpoint::Chat).then(|| usage_option(&root, &body)).flatten();
    let hide_usage = options.is_some();
    edits.extend(options.map(|options| ("stream_options", options)));
    drop(root);
    let body = if edits.is_empty() { body } else { edited(&body, &edits)? };
    Ok(Plan { selected, reserve, body, hide_usage })
}

/// Fields, and the JSON that each is set to.
type Edits = Vec<(&'static str, String)>;

/// What is reserved for the call, and what has to be set in it for that to be the most it can use.
fn reserved(
    endpoint: Endpoint,
    root: &Node<'_>,
    body: &[u8],
    selected: &Selected,
    held: &Held,
) -> Result<(Reserve, Edits), Refusal> {
    let mut edits = Vec::new();
    let (mut budgeted, mut in_dollars) = (false, false);
    let (input, output) = match *held {
        // what only counts tokens costs nothing, whatever it counts
        Held::Budget { left, priced } if endpoint != Endpoint::CountTokens => {
            (budgeted, in_dollars) = (true, priced);
            let (bound, missing) = within(endpoint, root, body.len(), selected, left, priced)?;
            edits.extend(missing.map(|(field, cap)| (field, cap.to_string())));
            let cap = missing.map(|(_, cap)| cap).or(bound.cap).unwrap_or(0);
            (bound.input, bound.choices.saturating_mul(cap))
        }
        _ => {
            let bound = bound::bound(endpoint, root, body.len(), image_tokens(selected));
            let bound = bound.unwrap_or(Bound::of_bytes(body.len()));
            let most = selected.model.as_ref().and_then(|model| model.max_output);
            let writes = endpoint.cap_field(selected.upstream.cap).is_some();
            let cap = bound.cap.or(most).filter(|_| writes).unwrap_or(0);
            (bound.input, bound.choices.saturating_mul(cap))
        }
    };
    let price = selected.model.as_ref().and_then(|model| model.price);
    let bound =
        Amount { tokens: input.saturating_add(output), micros: price.map_or(0, |price| price.at_most(input, output)) };
    let (model, upstream) = (selected.name.clone(), selected.upstream_name.clone());
    Ok((Reserve { model, upstream, bound, price, budgeted, priced: in_dollars }, edits))
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
    let model = model.text().ok_or_else(|| Refusal::field("model", "it must be a text"))?;
    if model.is_empty() || model.len() > LONGEST_NAME {
        return Err(Refusal::field("model", format_args!("it must have 1 to {LONGEST_NAME} bytes")));
    }
    Ok(model)
}

/// A field, and the cap that it is given.
type MissingCap = (&'static str, u64);

/// The bound under a budget, and the cap that has to be set because the request has none.
fn within(
    endpoint: Endpoint,
    root: &Node<'_>,
    bytes: usize,
    selected: &Selected,
    left: u64,
    priced: bool,
) -> Result<(Bound, Option<MissingCap>), Refusal> {
    let name = &selected.name;
    if priced && selected.model.as_ref().is_none_or(|model| model.price.is_none()) {
        return Err(Refusal::field(
            "model",
            format_args!(
                "a budget in dollars is in force and no price is configured for `{name}` (`input_usd` and `output_usd` of [model.\"{name}\"])"
            ),
        ));
    }
    let refuse = |unbounded: super::content::Unbounded| Refusal::field(&unbounded.field, unbounded.cause);
    unbounded::check(endpoint, root, priced).map_err(refuse)?;
    if endpoint == Endpoint::Chat {
        obeyed_cap(root, selected)?;
    }
    let bound = bound::bound(endpoint, root, bytes, image_tokens(selected)).map_err(refuse)?;
    let (Some(field), None) = (endpoint.cap_field(selected.upstream.cap), bound.cap) else { return Ok((bound, None)) };
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

/// A cap that the upstream does not know it would ignore.
fn obeyed_cap(root: &Node<'_>, selected: &Selected) -> Result<(), Refusal> {
    let (cap, name) = (selected.upstream.cap, &selected.upstream_name);
    let (obeyed, other) = (cap.as_str(), cap.other().as_str());
    if root.get(obeyed).is_some() || root.get(other).is_none() {
        return Ok(());
    }
    Err(Refusal::field(
        other,
        format_args!(
            "the upstream `{name}` caps the output by `{obeyed}`, so under a budget this is no cap: send that one \
             (or have `cap_field` of [upstream.{name}] say which it obeys)"
        ),
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::{CapField, Format, Upstream};
    use sandbar_policy::{Host, Price};

    const ANY: &str = "vendor-of-any";

    fn catalogue() -> Catalogue {
        let host = Host::Name("vendor.test".into());
        let upstream = Upstream {
            format: Format::OpenAi,
            tls: true,
            host,
            port: 443,
            path: String::new(),
            secret: None,
            any_model: true,
            cap: CapField::MaxCompletionTokens,
        };
        let price = Some(Price { input: 1_000_000, output: 2_000_000, cached_input: 0, cache_write: 0 });
        let model = Model { upstream: ANY.into(), vendor_name: None, price, max_output: None, image_tokens: 0 };
        let mut catalogue = Catalogue::default();
        catalogue.upstreams.insert(ANY.into(), upstream);
        catalogue.models.insert("m".into(), model);
        catalogue
    }

    fn planned(endpoint: Endpoint, body: &str, held: &Held) -> Result<(String, Amount), String> {
        let plan = plan(endpoint, Bytes::copy_from_slice(body.as_bytes()), &catalogue(), None, held);
        let plan = plan.map_err(|refusal| refusal.message)?;
        Ok((String::from_utf8_lossy(&plan.body).into_owned(), plan.reserve.bound))
    }

    #[test]
    fn what_is_left_is_the_cap_where_nothing_else_is_said() {
        let held = Held::Budget { left: 124, priced: false };
        let (body, bound) = planned(Endpoint::Chat, r#"{"model":"m","n":2 }"#, &held).expect("a plan");
        assert_eq!((body.as_str(), bound.tokens), (r#"{"max_completion_tokens":52,"model":"m","n":2 }"#, 124));
        // too little even for the least: the books are asked all the same, and refuse it with their numbers
        let held = Held::Budget { left: 5, priced: false };
        let (body, bound) = planned(Endpoint::Responses, r#"{"model":"m"}"#, &held).expect("a plan");
        assert_eq!((body.as_str(), bound.tokens), (r#"{"max_output_tokens":16,"model":"m"}"#, 13 + 16));
    }

    #[test]
    fn a_budget_in_dollars_alone_needs_a_cap_and_a_price() {
        let held = Held::Budget { left: u64::MAX, priced: true };
        let refused = planned(Endpoint::Chat, r#"{"model":"m"}"#, &held).expect_err("no cap");
        assert!(refused.contains("`max_completion_tokens`") && refused.contains("`max_output`"), "{refused}");
        let refused =
            planned(Endpoint::Chat, r#"{"model":"other","max_completion_tokens":1}"#, &held).expect_err("no price");
        assert!(refused.contains("no price is configured for `other`"), "{refused}");
        let (_, bound) = planned(Endpoint::Chat, r#"{"model":"m","max_completion_tokens":9}"#, &held).expect("a plan");
        assert_eq!(bound, Amount { tokens: 39 + 9, micros: 39 + 18 });
    }

    #[test]
    fn only_the_field_that_the_upstream_obeys_is_a_cap() {
        let held = Held::Budget { left: 1000, priced: false };
        let other = r#"{"model":"m","max_tokens":9}"#;
        let refused = planned(Endpoint::Chat, other, &held).expect_err("no cap");
        assert!(refused.starts_with("`max_tokens`: ") && refused.contains("`max_completion_tokens`"), "{refused}");
        let both = r#"{"model":"m","max_tokens":90,"max_completion_tokens":9}"#;
        let (_, bound) = planned(Endpoint::Chat, both, &held).expect("a plan");
        assert_eq!(bound.tokens, both.len() as u64 + 90, "whichever it obeys");
        assert!(planned(Endpoint::Chat, other, &Held::Counted).is_ok());
        let mut catalogue = catalogue();
        catalogue.upstreams.get_mut(ANY).expect("an upstream").cap = CapField::MaxTokens;
        let of =
            |body: &'static str| plan(Endpoint::Chat, Bytes::from_static(body.as_bytes()), &catalogue, None, &held);
        assert_eq!(of(other).expect("a plan").reserve.bound.tokens, other.len() as u64 + 9);
        assert!(of(r#"{"model":"m","max_completion_tokens":9}"#).is_err());
        assert!(of(r#"{"model":"m"}"#).expect("a plan").body.starts_with(b"{\"max_tokens\":"));
    }

    #[test]
    fn what_was_known_of_a_budget_is_told_to_the_books() {
        for (held, told) in [
            (Held::Counted, (false, false)),
            (Held::Budget { left: 1000, priced: false }, (true, false)),
            (Held::Budget { left: 1000, priced: true }, (true, true)),
        ] {
            let body = Bytes::from_static(br#"{"model":"m"}"#);
            let reserve = plan(Endpoint::Chat, body, &catalogue(), None, &held).expect("a plan").reserve;
            assert_eq!((reserve.budgeted, reserve.priced), told);
        }
    }

    #[test]
    fn without_a_budget_only_usage_is_asked_for() {
        let body = r#"{"model":"m","previous_response_id":"r","n":-5}"#;
        assert_eq!(planned(Endpoint::Responses, body, &Held::Counted).map(|(body, _)| body), Ok(body.into()));
        let (body, _) = planned(Endpoint::Chat, r#"{"model":"m","stream":true}"#, &Held::Counted).expect("a plan");
        assert_eq!(body, r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#);
        // what the vendor refuses anyway stays as it is
        let body = r#"{"model":"m","stream":true,"stream_options":7}"#;
        assert_eq!(planned(Endpoint::Chat, body, &Held::Counted).map(|(body, _)| body), Ok(body.into()));
    }

    #[test]
    fn a_name_is_neither_empty_nor_endless() {
        for model in ["", &"x".repeat(257)] {
            let refused =
                planned(Endpoint::Chat, &format!("{{\"model\":\"{model}\"}}"), &Held::Counted).expect_err("a name");
            assert!(refused.contains("1 to 256 bytes"), "{refused}");
        }
    }
}
