//! gRPC for programs: the verbs of the REST API, on the same port, behind the same checks of Host, token and role.
//!
//! Each method is a route of its own, and POST alone. What stands in front of the routes answers with problems; those become
//! statuses on the way out (`status::answer`), so that there is one place that refuses and one that translates.

mod access;
mod bounds;
mod convert;
mod files;
mod health;
mod processes;
mod proto;
mod sandboxes;
mod sessions;
mod status;
mod terminals;

use std::{convert::Infallible, pin::Pin};

use axum::{Router, extract::Request, middleware, response::Response, routing::post_service};
use futures_util::Stream;
use sandbar_engine::{Caller, Engine};
use tonic::{Status, server::NamedService};
use tonic_reflection::server::Builder;
use tower::Service;

pub(crate) use access::{permit, serves};
pub(crate) use status::{answer, counts_as};

use crate::{App, access::unauthenticated};
use bounds::Bounds;
use proto::{METHODS, Method};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves one of the services.
#[derive(Clone)]
struct Desk(App);

impl Desk {
    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// As the caller may use it, for methods that look into a sandbox.
    fn looking<T>(&self, request: &tonic::Request<T>) -> Result<Engine, Status> {
        Ok(self.0.engine.of(&caller(request)?))
    }
}

const HEALTH: &[Method] = &[
    Method { service: health::NAME, path: "/grpc.health.v1.Health/Check", streams: false },
    Method { service: health::NAME, path: "/grpc.health.v1.Health/Watch", streams: true },
];

/// Two versions of one protocol: many tools speak the older one alone.
const REFLECTION: &[Method] = &[
    Method {
        service: "grpc.reflection.v1.ServerReflection",
        path: "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        streams: true,
    },
    Method {
        service: "grpc.reflection.v1alpha.ServerReflection",
        path: "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        streams: true,
    },
];

/// Without a token, like `/healthz`.
pub(crate) fn open(app: &App) -> Router<App> {
    mount(Router::new(), app, HEALTH, health::server())
}

pub(crate) fn guarded(app: &App) -> Router<App> {
    let desk = Desk(app.clone());
    let router = Router::new();
    let router = mount(router, app, METHODS, proto::sandboxes_server::SandboxesServer::new(desk.clone()));
    let router = mount(router, app, METHODS, proto::processes_server::ProcessesServer::new(desk.clone()));
    let router = mount(router, app, METHODS, proto::terminals_server::TerminalsServer::new(desk.clone()));
    let router = mount(router, app, METHODS, proto::files_server::FilesServer::new(desk.clone()));
    let router = mount(router, app, METHODS, proto::sessions_server::SessionsServer::new(desk));
    let told = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (told().build_v1(), told().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => mount(mount(router, app, REFLECTION, v1), app, REFLECTION, v1alpha),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "reflection is not served");
            router
        }
    }
}

/// Adds those of the methods that are the service's.
fn mount<S>(router: Router<App>, app: &App, methods: &[Method], service: S) -> Router<App>
where
    S: Service<Request, Response = Response<tonic::body::Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    methods.iter().filter(|method| method.service == S::NAME).fold(router, |router, method| {
        let bounds = Bounds { app: app.clone(), streams: method.streams };
        let bounded = post_service(service.clone()).layer(middleware::from_fn_with_state(bounds, bounds::hold));
        router.route(method.path, bounded)
    })
}

/// Those that need a token.
#[cfg(test)]
pub(crate) fn guarded_methods() -> impl Iterator<Item = &'static str> {
    METHODS.iter().chain(REFLECTION).map(|method| method.path)
}

/// The caller that was found in front of the routes.
fn caller<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| status::of(unauthenticated("The call carries no token.")))
}
