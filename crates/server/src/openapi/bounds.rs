//! Patterns and lengths that the server checks, as the document states them. A schema refuses nothing that the server
//! takes: what JSON Schema cannot say (bytes rather than characters, sums, `never begins with sbx-`) stays the server's.

use sandbar_api::{
    ApprovalId, ProcessId, SandboxId, SessionId, SnapshotId, TokenId, WebhookId, approval, check, network, secret,
    token, webhook,
};
use utoipa::openapi::{
    Components, Object, RefOr, Schema,
    path::Operation,
    schema::{AdditionalProperties, Array, ArrayItems},
};

/// Of sandboxes, sessions, snapshots, webhooks and templates.
const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
/// A number follows.
const FORK_NAME: &str = "^[a-z0-9][a-z0-9-]{0,60}$";
const SECRET_NAME: &str = "^[A-Z][A-Z0-9_]{0,63}$";
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
const LABEL_KEY: &str = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$";
const NO_CONTROL: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";
const NO_NUL: &str = "^[^\\u0000]*$";
const KIND: &str = "^[a-z_]+\\.[a-z_]*$";
const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";
const SIZE: &str = "^[0-9]+([Bb]|[KkMmGgTt]([Ii][Bb])?)?$";
const IDEMPOTENCY_KEY: &str = "^[!-~]{1,255}$";

/// Alphabet and length of what follows an id's prefix.
const ID: &str = "[0-9a-hjkmnp-tv-z]{26}$";
const IDS: [(&str, &str); 7] = [
    ("SandboxId", SandboxId::PREFIX),
    ("SessionId", SessionId::PREFIX),
    ("ProcessId", ProcessId::PREFIX),
    ("SnapshotId", SnapshotId::PREFIX),
    ("TokenId", TokenId::PREFIX),
    ("ApprovalId", ApprovalId::PREFIX),
    ("WebhookId", WebhookId::PREFIX),
];
const TEXTS: [(&str, &str); 2] = [("HumanDuration", DURATION), ("HumanSize", SIZE)];

const SECRETS: Bound = Bound::List { least: 0, most: None, item: Some(SECRET_NAME) };
const RULES: Bound = Bound::List { least: 0, most: Some(network::MAX_RULES), item: None };

/// The fields of requests, by schema.
const FIELDS: [(&str, &[(&str, Bound)]); 13] = [
    (
        "CreateSandbox",
        &[
            ("name", Bound::Text(NAME)),
            ("template", Bound::Text(NAME)),
            ("labels", Bound::Labels),
            ("env", Bound::Env),
            ("secrets", SECRETS),
        ],
    ),
    (
        "CreateSession",
        &[
            ("name", Bound::Text(NAME)),
            ("template", Bound::Text(NAME)),
            ("labels", Bound::Labels),
            ("env", Bound::Env),
            ("secrets", SECRETS),
            ("command", Bound::Argv),
            ("cwd", Bound::Text(NO_NUL)),
        ],
    ),
    ("StartProcess", &[("argv", Bound::Argv), ("env", Bound::Env), ("cwd", Bound::Text(NO_NUL))]),
    ("ExecRequest", &[("argv", Bound::Argv), ("env", Bound::Env), ("cwd", Bound::Text(NO_NUL))]),
    ("CreateSnapshot", &[("name", Bound::Text(NAME))]),
    ("Fork", &[("name", Bound::Text(FORK_NAME)), ("labels", Bound::Labels)]),
    ("CreateToken", &[("name", Bound::Line(token::MAX_NAME))]),
    (
        "CreateWebhook",
        &[
            ("name", Bound::Text(NAME)),
            ("kinds", Bound::List { least: 0, most: Some(webhook::MAX_KINDS), item: Some(KIND) }),
        ],
    ),
    (
        "SetSecret",
        &[
            ("hosts", Bound::List { least: 1, most: Some(secret::MAX_HOSTS), item: None }),
            ("value", Bound::Longest(secret::MAX_SECRET)),
        ],
    ),
    ("NetworkPolicy", &[("allow", RULES), ("ask", RULES), ("deny", RULES)]),
    ("AddRules", &[("rules", Bound::List { least: 1, most: Some(network::MAX_RULES), item: None })]),
    ("AnswerApproval", &[("text", Bound::Longest(approval::MAX_TEXT))]),
    ("AdoptQuarantined", &[("name", Bound::Text(NAME)), ("template", Bound::Text(NAME))]),
];

#[derive(Clone, Copy)]
enum Bound {
    Text(&'static str),
    /// 1 to so many bytes without control characters.
    Line(usize),
    Longest(usize),
    /// How many items, and what each looks like.
    List {
        least: usize,
        most: Option<usize>,
        item: Option<&'static str>,
    },
    Argv,
    Labels,
    Env,
}

pub(super) fn apply(components: &mut Components) {
    let ids = IDS.map(|(name, prefix)| (name, format!("^{prefix}{ID}")));
    let texts = TEXTS.map(|(name, pattern)| (name, pattern.to_owned()));
    for (name, pattern) in ids.into_iter().chain(texts) {
        match components.schemas.get_mut(name) {
            Some(RefOr::T(Schema::Object(schema))) => schema.pattern = Some(pattern),
            _ => unreachable!("the document has no text {name}"),
        }
    }
    for (name, fields) in FIELDS {
        let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(name) else {
            unreachable!("the document has no object {name}")
        };
        for (field, bound) in fields {
            let done = match schema.properties.get_mut(*field) {
                Some(RefOr::T(schema)) => bound.put(schema),
                Some(RefOr::Ref(_)) | None => false,
            };
            assert!(done, "{name} has no {field} that this bound is for");
        }
    }
}

/// Of what a handler reads by itself.
pub(super) fn of_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "Idempotency-Key"
            && let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
        {
            schema.pattern = Some(IDEMPOTENCY_KEY.to_owned());
        }
    }
}

impl Bound {
    /// Whether the schema is of the kind that it is for.
    fn put(self, schema: &mut Schema) -> bool {
        match (self, schema) {
            (Self::Text(pattern), Schema::Object(object)) => object.pattern = Some(pattern.to_owned()),
            (Self::Line(most), Schema::Object(object)) => {
                object.pattern = Some(NO_CONTROL.to_owned());
                (object.min_length, object.max_length) = (Some(1), Some(most));
            }
            (Self::Longest(most), Schema::Object(object)) => object.max_length = Some(most),
            (Self::List { least, most, item: pattern }, Schema::Array(array)) => {
                (array.min_items, array.max_items) = ((least > 0).then_some(least), most);
                let Some(item) = item(array) else { return false };
                item.pattern = pattern.map(str::to_owned);
            }
            (Self::Argv, Schema::Array(array)) => {
                array.min_items = Some(1);
                let Some(item) = item(array) else { return false };
                (item.pattern, item.max_length) = (Some(NO_NUL.to_owned()), Some(check::MAX_STRING));
            }
            (Self::Labels, Schema::Object(map)) => {
                let of_value = |value: &mut Object| {
                    (value.pattern, value.max_length) = (Some(NO_CONTROL.to_owned()), Some(check::MAX_LABEL_VALUE));
                };
                return entries(map, LABEL_KEY, check::MAX_LABELS, of_value);
            }
            (Self::Env, Schema::Object(map)) => {
                let of_value = |value: &mut Object| {
                    (value.pattern, value.max_length) = (Some(NO_NUL.to_owned()), Some(check::MAX_STRING));
                };
                return entries(map, VARIABLE, check::MAX_ENV, of_value);
            }
            _ => return false,
        }
        true
    }
}

fn item(array: &mut Array) -> Option<&mut Object> {
    match &mut array.items {
        ArrayItems::RefOrSchema(item) => match item.as_mut() {
            RefOr::T(Schema::Object(item)) => Some(item),
            _ => None,
        },
        ArrayItems::False => None,
    }
}

fn entries(map: &mut Object, key: &str, most: usize, of_value: impl FnOnce(&mut Object)) -> bool {
    map.max_properties = Some(most);
    let Some(Schema::Object(name)) = map.property_names.as_deref_mut() else { return false };
    name.pattern = Some(key.to_owned());
    let Some(AdditionalProperties::RefOr(RefOr::T(Schema::Object(value)))) = map.additional_properties.as_deref_mut()
    else {
        return false;
    };
    of_value(value);
    true
}
