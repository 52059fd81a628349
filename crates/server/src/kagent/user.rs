//! Whom a caller acts for: the user it names, else itself. Only those get here who may see what is everybody's.

use axum::http::HeaderMap;
use sandbar_api::workspace;
use sandbar_engine::Caller;

use super::fault::{Fault, Result};

const HEADER: &str = "x-user-id";
const FAILED: &str = "Failed to get user ID";

pub(super) fn of(caller: &Caller, headers: &HeaderMap, parameter: Option<&str>) -> Result<String> {
    let bad = |cause: &str| Fault::bad(FAILED, Some(cause.to_owned()));
    let mut sent = headers.get_all(HEADER).iter();
    let header = match (sent.next(), sent.next()) {
        (None, _) => None,
        (Some(value), None) => Some(std::str::from_utf8(value.as_bytes()).map_err(|_| bad("the header is not UTF-8"))?),
        (Some(_), Some(_)) => return Err(bad("the header is there twice")),
    };
    let user = match (parameter, header) {
        (Some(parameter), Some(header)) if parameter != header => {
            return Err(bad("the parameter and the header name different users"));
        }
        (Some(user), _) | (None, Some(user)) => user,
        (None, None) => return Ok(caller.owner.clone()),
    };
    workspace::check_id(user).map_err(|problem| bad(&problem.fix))?;
    Ok(user.to_owned())
}

/// The id of a conversation in a path.
pub(super) fn session(id: &str) -> Result<&str> {
    match workspace::check_id(id) {
        Ok(()) => Ok(id),
        Err(problem) => Err(Fault::bad("Failed to get session_id from path", Some(problem.fix))),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use sandbar_api::Role;

    use super::*;

    #[test]
    fn whoever_names_nobody_acts_for_itself() {
        let caller = Caller { owner: "token:x".into(), role: Role::Operator, session: None };
        let of = |parameter: Option<&str>, sent: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(HEADER, HeaderValue::from_static(value));
            }
            of(&caller, &headers, parameter).ok()
        };
        assert_eq!(of(None, &[]).as_deref(), Some("token:x"));
        assert_eq!(of(Some("ann"), &[]).as_deref(), Some("ann"));
        assert_eq!(of(None, &["ann"]).as_deref(), Some("ann"));
        assert_eq!(of(Some("ann"), &["ann"]).as_deref(), Some("ann"));
        for (parameter, sent) in [(Some("ann"), &["bob"][..]), (None, &["a", "a"]), (Some(""), &[]), (Some("a\n"), &[])]
        {
            assert_eq!(of(parameter, sent), None, "{parameter:?} {sent:?}");
        }
    }
}
