//! Which methods are for whom. Listed one by one: a method that nobody put on a list is for operators.

use axum::http::Method;
use sandbar_api::{Problem, Role};

use crate::roles;

/// All that reads and changes nothing. Attaching refuses a viewer who wants to control the terminal.
const READS: [&str; 14] = [
    "/sandbar.v1.Sandboxes/Get",
    "/sandbar.v1.Sandboxes/List",
    "/sandbar.v1.Processes/Get",
    "/sandbar.v1.Processes/List",
    "/sandbar.v1.Processes/Output",
    "/sandbar.v1.Terminals/Attach",
    "/sandbar.v1.Files/Stat",
    "/sandbar.v1.Files/List",
    "/sandbar.v1.Files/Read",
    "/sandbar.v1.Files/Search",
    "/sandbar.v1.Sessions/Get",
    "/sandbar.v1.Sessions/List",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// What an agent may see: its own session. It works through the session's MCP endpoint.
const AGENT: [&str; 2] = ["/sandbar.v1.Sessions/Get", "/sandbar.v1.Sessions/List"];

/// Whether the route, by the router's own name, is a method of ours.
pub(crate) fn serves(route: &str) -> bool {
    route.starts_with("/sandbar.v1.") || route.starts_with("/grpc.")
}

/// Whatever the HTTP method: every call is a POST, also one that reads.
pub(crate) fn permit(role: Role, method: &str) -> Result<(), Problem> {
    match role {
        Role::Viewer if READS.contains(&method) => Ok(()),
        Role::Agent if AGENT.contains(&method) => Ok(()),
        role => roles::permit(role, &Method::POST, None),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{REFLECTION, proto::METHODS},
        *,
    };

    #[test]
    fn what_is_listed_exists() {
        let known: Vec<_> = METHODS.iter().chain(REFLECTION).map(|method| method.path).collect();
        for listed in READS.iter().chain(&AGENT) {
            assert!(known.contains(listed), "{listed}");
        }
        assert!(known.iter().all(|path| serves(path)));
    }

    #[test]
    fn each_role_has_its_methods() {
        for method in METHODS.iter().chain(REFLECTION) {
            let name = method.path.rsplit('/').next().unwrap_or_default();
            let reads =
                ["Get", "List", "Stat", "Read", "Search", "Output", "Attach", "ServerReflectionInfo"].contains(&name);
            assert_eq!(permit(Role::Viewer, method.path).is_ok(), reads, "{}", method.path);
            let own = method.path.contains(".Sessions/") && reads;
            assert_eq!(permit(Role::Agent, method.path).is_ok(), own, "{}", method.path);
            assert!(permit(Role::Operator, method.path).is_ok() && permit(Role::Admin, method.path).is_ok());
        }
        for unlisted in ["/sandbar.v1.Sandboxes/Explode", "/sandbar.v1.Sandboxes/get", ""] {
            assert!(permit(Role::Viewer, unlisted).is_err() && permit(Role::Agent, unlisted).is_err());
        }
    }
}
