//! What a line says: a request, a notification or an answer of JSON-RPC; and our own answers where the server has none.

use serde_json::{Value, json};

pub(super) const PARSE_ERROR: i32 = -32700;
pub(super) const INVALID_REQUEST: i32 = -32600;
pub(super) const INTERNAL_ERROR: i32 = -32603;
/// What the official clients also take for a connection that is gone.
pub(super) const CONNECTION_LOST: i32 = -32000;

#[derive(Debug, Clone)]
pub(super) struct Message {
    /// As it came: numbers keep every digit.
    pub text: String,
    pub value: Value,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Request {
        id: Value,
        method: String,
    },
    Notification {
        method: String,
    },
    /// To a request of the server.
    Answer,
}

impl Message {
    /// Or the error to answer with.
    pub(super) fn parse(line: Vec<u8>) -> Result<Self, String> {
        let not_json = |why: String| error(&Value::Null, PARSE_ERROR, &format!("The line is not JSON: {why}."), None);
        let text = String::from_utf8(line).map_err(|_| not_json("it is not UTF-8".into()))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| not_json(error.to_string()))?;
        let kind = kind(&value)
            .map_err(|why| error(&Value::Null, INVALID_REQUEST, &format!("The line is no message: {why}."), None))?;
        Ok(Self { text, value, kind })
    }
}

fn kind(value: &Value) -> Result<Kind, &'static str> {
    let Some(object) = value.as_object() else {
        return Err(if value.is_array() { "send each message on a line of its own" } else { "it is not an object" });
    };
    let method = match object.get("method") {
        None => None,
        Some(Value::String(method)) => Some(method.clone()),
        Some(_) => return Err("`method` is not a string"),
    };
    let id = match object.get("id") {
        None => None,
        Some(id @ (Value::String(_) | Value::Number(_))) => Some(id.clone()),
        Some(_) => return Err("`id` is neither a string nor a number"),
    };
    match (method, id) {
        (Some(method), Some(id)) => Ok(Kind::Request { id, method }),
        (Some(method), None) => Ok(Kind::Notification { method }),
        (None, Some(_)) if object.contains_key("result") || object.contains_key("error") => Ok(Kind::Answer),
        (None, _) => Err("it has neither `method` nor `result` nor `error`"),
    }
}

/// The id of a request that cannot be taken otherwise.
pub(super) fn id_of(line: &[u8]) -> Value {
    #[derive(serde::Deserialize)]
    struct Known {
        id: Value,
        #[serde(rename = "method")]
        _method: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Known>(line).map_or(Value::Null, |known| known.id)
}

/// Whether this ends the request.
pub(super) fn answers(text: &str, id: &Value) -> bool {
    #[derive(serde::Deserialize)]
    struct Known {
        id: Option<Value>,
        method: Option<serde::de::IgnoredAny>,
        error: Option<serde::de::IgnoredAny>,
    }
    match serde_json::from_str::<Known>(text) {
        Ok(Known { method: Some(_), .. }) | Err(_) => false,
        Ok(Known { id: Some(said), .. }) => said == *id,
        // One that the server could not read, which is this one.
        Ok(Known { error, .. }) => error.is_some(),
    }
}

/// With the id of the request, where the server did not know it.
pub(super) fn addressed(text: String, id: &Value) -> String {
    match serde_json::from_str::<Value>(&text) {
        Ok(mut value) if value.get("id").is_none_or(Value::is_null) && value.get("error").is_some() => {
            value["id"] = id.clone();
            value.to_string()
        }
        _ => text,
    }
}

pub(super) fn error(id: &Value, code: i32, message: &str, data: Option<Value>) -> String {
    let mut error = json!({"code": code, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Kind, i64> {
        Message::parse(text.into()).map(|message| message.kind).map_err(|error| {
            let error: Value = serde_json::from_str(&error).unwrap_or_default();
            assert!(error["id"].is_null() && error["error"]["message"].is_string(), "{error}");
            error["error"]["code"].as_i64().unwrap_or_default()
        })
    }

    #[test]
    fn messages_are_told_apart() {
        let request = |id: Value| Ok(Kind::Request { id, method: "m".into() });
        assert_eq!(parsed(r#"{"method":"m","id":1}"#), request(json!(1)));
        assert_eq!(parsed(r#"{"method":"m","id":"a"}"#), request(json!("a")));
        assert_eq!(parsed(r#"{"method":"m"}"#), Ok(Kind::Notification { method: "m".into() }));
        assert_eq!(parsed(r#"{"id":1,"result":{}}"#), Ok(Kind::Answer));
        for garbage in ["", "x", "{", "{\"method\":\"m\"} x"] {
            assert_eq!(parsed(garbage), Err(PARSE_ERROR.into()), "{garbage}");
        }
        for wrong in ["1", "[]", "{}", r#"{"id":1}"#, r#"{"method":1}"#, r#"{"method":"m","id":null}"#] {
            assert_eq!(parsed(wrong), Err(INVALID_REQUEST.into()), "{wrong}");
        }
        assert!(Message::parse(vec![b'"', 0xff, b'"']).is_err());
    }

    #[test]
    fn answers_are_recognised_and_addressed() {
        assert!(answers(r#"{"id":1,"result":{}}"#, &json!(1)));
        assert!(!answers(r#"{"id":1,"method":"ping"}"#, &json!(1)));
        assert!(!answers(r#"{"id":"1","result":{}}"#, &json!(1)));
        assert!(answers(r#"{"id":null,"error":{}}"#, &json!(1)));
        assert_eq!(addressed(r#"{"id":null,"error":{}}"#.into(), &json!(7)), r#"{"error":{},"id":7}"#);
        assert_eq!(addressed(r#"{"id":1,"error":{}}"#.into(), &json!(7)), r#"{"id":1,"error":{}}"#);
        assert_eq!(id_of(br#"{"method":"m","params":{"id":2},"id":"x"}"#), json!("x"));
        assert_eq!(id_of(br#"{"result":{},"id":"x"}"#), Value::Null);
    }
}
