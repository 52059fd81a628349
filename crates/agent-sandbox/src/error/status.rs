//! What the apiserver and the connection to it say, told apart.

use kube::core::Status;

use super::{Error, chain};

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => from_status(status),
            kube::Error::Auth(error) => Self::Unauthorized { message: chain(&error) },
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                Self::Unreachable { source: Box::new(error) }
            }
            other => Self::Kube(Box::new(other)),
        }
    }
}

fn from_status(status: Box<Status>) -> Error {
    let (kind, name) = match &status.details {
        Some(details) => (details.kind.clone(), details.name.clone()),
        None => ("object".to_owned(), String::new()),
    };
    let message = status.message.clone();
    match status.code {
        401 => Error::Unauthorized { message },
        403 if message.contains("exceeded quota") => Error::QuotaExceeded { message },
        403 => {
            let (verb, resource) = denied(&message);
            Error::Forbidden { verb, resource, message }
        }
        404 => Error::NotFound { kind, name },
        409 if status.reason == "AlreadyExists" => Error::AlreadyExists { kind, name },
        409 => Error::Conflict { message },
        422 => Error::Invalid { message },
        // So a field that the cluster's version does not have is refused, by strict validation and by apply.
        400 if message.contains("unknown field") => Error::Invalid { message },
        500 if message.contains("field not declared in schema") => Error::Invalid { message },
        _ => Error::Api(status),
    }
}

/// Verb and resource of `… cannot create resource "sandboxclaims" in API group …`.
fn denied(message: &str) -> (String, String) {
    let found = message.split_once(" cannot ").and_then(|(_, rest)| {
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, _) = rest.split_once('"')?;
        Some((verb.to_owned(), resource.to_owned()))
    });
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::response::StatusDetails;

    fn status(code: u16, reason: &str, message: &str) -> Error {
        let details = StatusDetails {
            name: "x".into(),
            kind: "sandboxclaims".into(),
            group: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        kube::Error::Api(Status::failure(message, reason).with_code(code).with_details(details).boxed()).into()
    }

    #[test]
    fn a_refusal_becomes_its_own_error() {
        assert!(matches!(status(401, "Unauthorized", "Unauthorized"), Error::Unauthorized { .. }));
        assert!(
            matches!(status(404, "NotFound", ""), Error::NotFound { kind, name } if kind == "sandboxclaims" && name == "x")
        );
        assert!(matches!(status(409, "AlreadyExists", ""), Error::AlreadyExists { .. }));
        assert!(matches!(status(409, "Conflict", ""), Error::Conflict { .. }));
        assert!(matches!(status(422, "Invalid", ""), Error::Invalid { .. }));
        let strict = "strict decoding error: unknown field \"spec.warmpool\"";
        assert!(matches!(status(400, "BadRequest", strict), Error::Invalid { .. }));
        let apply = ".spec.updateStrategy: field not declared in schema";
        assert!(matches!(status(500, "", apply), Error::Invalid { .. }));
        assert!(matches!(status(400, "BadRequest", ""), Error::Api(_)));
        assert!(matches!(status(500, "InternalError", ""), Error::Api(_)));
        assert!(status(410, "Expired", "").is_gone());
        let quota =
            "sandboxclaims.extensions.agents.x-k8s.io \"x\" is forbidden: exceeded quota: q, requested: count/…=1";
        assert!(matches!(status(403, "Forbidden", quota), Error::QuotaExceeded { .. }));
    }

    #[test]
    fn a_denied_verb_is_named() {
        let message = r#"sandboxclaims.extensions.agents.x-k8s.io is forbidden: User "u" cannot create resource "sandboxclaims" in API group "extensions.agents.x-k8s.io" in the namespace "n""#;
        match status(403, "Forbidden", message) {
            Error::Forbidden { verb, resource, .. } => {
                assert_eq!((verb.as_str(), resource.as_str()), ("create", "sandboxclaims"))
            }
            other => panic!("{other}"),
        }
        assert!(matches!(status(403, "Forbidden", "no"), Error::Forbidden { verb, .. } if verb.is_empty()));
    }

    #[test]
    fn errors_stay_small() {
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }
}
