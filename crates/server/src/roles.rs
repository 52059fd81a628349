//! What each role may reach. An agent's token is in the hands of what is fenced in, so its routes are listed one by one:
//! a route that nobody put on the list is not for agents.

use axum::{extract::Request, http::Method, middleware::Next, response::Response};
use sandbar_api::{Code, Problem, Role};

use crate::{
    access::Calling,
    problem::{Refused, Result},
};

/// All an agent may read, by the router's own names; the engine shows it its own session's part.
const AGENT: [&str; 8] = [
    "/v1/approvals",
    "/v1/approvals/{approval}",
    "/v1/sessions",
    "/v1/sessions/{session}",
    "/v1/sessions/{session}/budget",
    "/v1/sessions/{session}/sandbox",
    "/v1/usage",
    "/internal/usage/{session}",
];

/// The tools of a session, the one of these routes where agents act; it compares an agent's session with the one it is asked for.
const TOOLS: &str = "/v1/sessions/{session}/mcp";

/// What acts, though it begins with a GET: it reaches programs inside, or makes sandboxes to see how they do.
const ACTS: [&str; 4] = ["/v1/sandboxes/{sandbox}/ports/{port}", "/v1/host", "/v1/kubernetes/check", TOOLS];

/// `route` is absent where no route matched.
pub(crate) fn permit(role: Role, method: &Method, route: Option<&str>) -> std::result::Result<(), Problem> {
    let acts = route.is_some_and(|route| ACTS.contains(&route));
    let reads = matches!(*method, Method::GET | Method::HEAD) && !acts;
    let refused = |detail: &str, fix: &str| Err(Problem::new(Code::Forbidden, detail, fix));
    match role {
        Role::Operator | Role::Admin => Ok(()),
        Role::Viewer if reads => Ok(()),
        Role::Viewer if acts => refused(
            "This starts something, and a viewer's token starts nothing.",
            "Use a token with the role operator or admin.",
        ),
        Role::Viewer => {
            refused("A viewer's token may read, not change.", "Use a token with the role operator or admin.")
        }
        Role::Agent if reads && route.is_some_and(|route| AGENT.contains(&route)) => Ok(()),
        Role::Agent if route == Some(TOOLS) && matches!(*method, Method::POST | Method::GET | Method::DELETE) => Ok(()),
        Role::Agent => refused(
            "An agent's token may use the tools of its own session and look at it, its budget, usage and approvals, and at nothing else.",
            "Let a person do it, with a token of another role.",
        ),
    }
}

/// On the routes of tokens and webhooks, and those that change secrets.
pub(crate) async fn admin_only(Calling(caller): Calling, request: Request, next: Next) -> Result<Response> {
    if caller.role < Role::Admin {
        let detail = "Tokens, secrets and webhooks are managed by admins.";
        return Err(Refused(Problem::new(Code::Forbidden, detail, "Use an admin's token.")));
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Method; 6] =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];

    #[test]
    fn viewers_only_read() {
        for method in METHODS {
            let reads = method == Method::GET || method == Method::HEAD;
            for route in [None, Some("/v1/sandboxes")] {
                assert_eq!(permit(Role::Viewer, &method, route).is_ok(), reads, "{method}");
                assert!(permit(Role::Operator, &method, route).is_ok() && permit(Role::Admin, &method, route).is_ok());
            }
        }
    }

    #[test]
    fn what_acts_is_for_those_who_may_act() {
        for method in METHODS {
            for (role, may) in
                [(Role::Viewer, false), (Role::Agent, false), (Role::Operator, true), (Role::Admin, true)]
            {
                for route in &ACTS[..3] {
                    assert_eq!(permit(role, &method, Some(route)).is_ok(), may, "{method} {route} {role:?}");
                }
            }
        }
    }

    #[test]
    fn agents_read_what_is_listed() {
        for method in METHODS {
            let reads = method == Method::GET || method == Method::HEAD;
            for (route, listed) in [
                (Some("/v1/usage"), true),
                (Some("/v1/approvals/{approval}"), true),
                (Some("/v1/approvals/{approval}/answer"), false),
                (Some("/v1/sessions"), true),
                (Some("/v1/sessions/{session}"), true),
                (Some("/v1/sessions/{session}/sandbox"), true),
                (Some("/api/sessions/{session_id}/sandbox"), false),
                (Some("/v1/sessions/{session}/model"), false),
                (Some("/v1/usage/"), false),
                (Some("/v1/sandboxes"), false),
                (Some("/v1/events"), false),
                (Some("/v1/sessions/{session}/mcp/"), false),
                (None, false),
            ] {
                let got = permit(Role::Agent, &method, route).map_err(|problem| problem.code);
                let want = if reads && listed { Ok(()) } else { Err(Code::Forbidden) };
                assert_eq!(got, want, "{method} {route:?}");
            }
        }
    }

    #[test]
    fn tools_are_for_agents_and_those_who_may_change() {
        for method in METHODS {
            let used = [Method::POST, Method::GET, Method::DELETE].contains(&method);
            assert_eq!(permit(Role::Agent, &method, Some(TOOLS)).is_ok(), used, "{method}");
            assert!(permit(Role::Viewer, &method, Some(TOOLS)).is_err(), "{method}");
            assert!(permit(Role::Operator, &method, Some(TOOLS)).is_ok(), "{method}");
        }
    }
}
