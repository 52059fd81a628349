//! sandboxd's gRPC port: processes, and reflection so that clients need no proto.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use tokio::sync::Semaphore;
use tonic::Status;

use super::{output::Held, process::Processes, serving::Serving, token};
use crate::{
    error::{Code, Fault},
    protocol::process::{DESCRIPTORS, process_service_server::ProcessServiceServer},
};

/// Calls at once whose request is being read or carried out, and of those that type, which may wait for a reader: what
/// one holds is at most a message, and all of them stay bounded. Streams that have begun do not count.
const CALLS: usize = 32;
const TYPING: usize = 16;
const TYPES: &str = "/process.v1.ProcessService/WriteStdin";
/// The largest messages in bytes: of a command, whose many small words take many times as much when they are read; of what
/// is typed; and of a question to reflection, of which there is one for each stream there can be.
const COMMAND: usize = 512 * 1024;
const TYPED: usize = 4 << 20;
const QUESTION: usize = 4096;

struct Door {
    token: String,
    calls: Semaphore,
    typing: Semaphore,
}

pub(super) fn app(serving: &Arc<Serving>) -> Result<Router, Fault> {
    let asked = serving.sandboxd.clone().unwrap_or_default();
    let processes = Arc::new(Processes { serving: Arc::clone(serving), root: asked.root });
    let commands = ProcessServiceServer::from_arc(Arc::clone(&processes)).max_decoding_message_size(COMMAND);
    let typing = ProcessServiceServer::from_arc(processes).max_decoding_message_size(TYPED);
    let reflection =
        || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    let unreadable = |error| Fault::new(Code::Internal, format!("Reflection does not read its own proto: {error}."));
    let door = Door { token: asked.token, calls: Semaphore::new(CALLS), typing: Semaphore::new(TYPING) };
    let v1 = reflection().build_v1().map_err(unreadable)?.max_decoding_message_size(QUESTION);
    let v1alpha = reflection().build_v1alpha().map_err(unreadable)?.max_decoding_message_size(QUESTION);
    Ok(Router::new()
        .route_service(TYPES, typing)
        .route_service("/process.v1.ProcessService/{method}", commands)
        .route_service("/grpc.reflection.v1.ServerReflection/{method}", v1)
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", v1alpha)
        .fallback(|| async { Status::unimplemented("there is no such service").into_http::<axum::body::Body>() })
        .layer(middleware::from_fn_with_state(Arc::new(door), enter)))
}

async fn enter(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    if !token::is_borne(&door.token, request.headers()) {
        return Status::unauthenticated("a valid bearer token is required")
            .into_http::<axum::body::Body>()
            .into_response();
    }
    let room = if request.uri().path() == TYPES { &door.typing } else { &door.calls };
    let _permit = room.acquire().await;
    let mut answer = next.run(request).await;
    match answer.extensions_mut().remove::<Held>() {
        Some(held) => held.until_sent(answer),
        None => answer,
    }
}
