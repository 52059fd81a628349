//! Whether the server lives, for whoever balances or supervises: open to everybody, and telling nothing else.

use futures_util::{StreamExt as _, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

use super::{Answers, proto::METHODS};

pub(super) const NAME: &str = tonic_health::pb::health_server::SERVICE_NAME;

pub(super) fn server() -> HealthServer<Pulse> {
    HealthServer::new(Pulse)
}

pub(super) struct Pulse;

/// Of the server as a whole, which has no name, and of each service.
fn is_served(name: &str) -> bool {
    name.is_empty() || METHODS.iter().any(|method| method.service == name)
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Pulse {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_served(&request.get_ref().service) {
            return Err(Status::not_found("There is no such service."));
        }
        Ok(Response::new(told(ServingStatus::Serving)))
    }

    type WatchStream = Answers<HealthCheckResponse>;

    /// Tells it once: when it changes the server is going, and the stream ends.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let served = is_served(&request.get_ref().service);
        let now = if served { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        Ok(Response::new(Box::pin(stream::iter([Ok(told(now))]).chain(stream::pending()))))
    }
}
