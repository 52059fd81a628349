//! The older HTTP API: one command at a time, and files. It has no token; its shapes and texts are the contract's.

mod execute;

use std::{path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{
        Method, StatusCode,
        header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{
    body::{self, Upload},
    place,
    serving::Serving,
};
use crate::{
    error::{Code, Fault},
    files::{
        below::{Ask, Below},
        part::Part,
    },
    protocol::{self, Entry, EntryKind},
    worker::{Frame, Receiver},
};

struct Legacy {
    serving: Arc<Serving>,
    asked: protocol::Legacy,
}

pub(super) fn app(serving: &Arc<Serving>) -> Router {
    let legacy = Legacy { serving: Arc::clone(serving), asked: serving.legacy.clone().unwrap_or_default() };
    // Not by routes: a whole path, its slashes escaped, is one part of the URL.
    Router::new().fallback(answer).with_state(Arc::new(legacy))
}

async fn answer(State(legacy): State<Arc<Legacy>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (route, below) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let wanted = match route {
        "" | "download" | "list" | "exists" => Method::GET,
        "execute" | "upload" if below.is_empty() => Method::POST,
        _ => return detail(StatusCode::NOT_FOUND, json!("Not Found")),
    };
    if *request.method() != wanted {
        let refused = detail(StatusCode::METHOD_NOT_ALLOWED, json!("Method Not Allowed"));
        return ([(ALLOW, wanted.as_str().to_owned())], refused).into_response();
    }
    match route {
        "" => Json(json!({ "status": "ok", "message": "Sandbox Runtime is active." })).into_response(),
        "execute" => execute::answer(&legacy, request).await,
        "upload" => upload(&legacy, request).await,
        "download" => download(&legacy, below).await,
        "list" => list(&legacy, below).await,
        _ => exists(&legacy, below).await,
    }
}

/// What is wrong with a request, as FastAPI says it.
fn detail(status: StatusCode, detail: Value) -> Response {
    (status, Json(json!({ "detail": detail }))).into_response()
}

fn unprocessable(field: &str, message: &str) -> Response {
    let what = json!([{ "loc": ["body", field], "msg": message, "type": "value_error" }]);
    detail(StatusCode::UNPROCESSABLE_ENTITY, what)
}

fn message(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "message": message }))).into_response()
}

fn denied() -> Response {
    message(StatusCode::FORBIDDEN, "Access denied")
}

impl Legacy {
    fn below(&self, path: PathBuf, ask: Ask) -> Below {
        Below { root: self.asked.root.clone().into(), path, ask }
    }
}

async fn upload(legacy: &Legacy, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let field = match Upload::part(kind, body).await {
        Ok(field) => field,
        Err(fault) => return unprocessable("file", &fault.message),
    };
    let Some(name) = field.file_name().filter(|name| !name.is_empty()).map(ToOwned::to_owned) else {
        return unprocessable("file", "the part has no filename");
    };
    let upload = Upload::Part(Box::new(field));
    let Ok(path) = place::below(name.as_bytes()) else {
        upload.drain().await;
        return denied();
    };
    let stored = match legacy.serving.work(legacy.below(path, Ask::Write { mode: None })).await {
        Ok(worker) => upload.store(worker).await,
        Err(fault) => Err(fault),
    };
    match stored {
        Ok(_) => Json(json!({ "message": format!("File '{name}' uploaded successfully.") })).into_response(),
        Err(fault) if fault.code == Code::FileForbidden => denied(),
        Err(fault) => message(StatusCode::INTERNAL_SERVER_ERROR, &format!("File upload failed: {}", fault.message)),
    }
}

/// What a path leads to, and the worker that goes on with it.
async fn open(legacy: &Legacy, below: &str) -> Result<(Entry, Receiver), Fault> {
    let path = place::from_url(below).map_err(|_| Fault::new(Code::FileForbidden, "the path leads nowhere below"))?;
    let mut worker = legacy.serving.work(legacy.below(path, Ask::Read(Part::Whole))).await?;
    match worker.receiver.next().await? {
        Frame::Entry(entry) => Ok((entry, worker.receiver)),
        _ => Err(Fault::new(Code::Internal, "The file worker told nothing.")),
    }
}

async fn download(legacy: &Legacy, below: &str) -> Response {
    match open(legacy, below).await {
        Ok((entry, receiver)) if entry.kind() == EntryKind::File => {
            let headers =
                [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_LENGTH, entry.size.to_string())];
            (headers, body::download(receiver)).into_response()
        }
        outcome => failed(outcome.err(), "File not found"),
    }
}

async fn list(legacy: &Legacy, below: &str) -> Response {
    match open(legacy, below).await {
        Ok((entry, receiver)) if entry.kind() == EntryKind::Directory => {
            let listing = body::listing(receiver, "[".into(), "]", item);
            ([(CONTENT_TYPE, "application/json")], listing).into_response()
        }
        outcome => failed(outcome.err(), "Path is not a directory"),
    }
}

/// No fault: it is another kind of thing.
fn failed(fault: Option<Fault>, absent: &str) -> Response {
    let Some(fault) = fault else { return message(StatusCode::NOT_FOUND, absent) };
    match fault.code {
        Code::FileForbidden => denied(),
        Code::UnknownFile | Code::WrongFileKind | Code::BadRequest | Code::BadPath => {
            message(StatusCode::NOT_FOUND, absent)
        }
        _ => message(StatusCode::INTERNAL_SERVER_ERROR, &fault.message),
    }
}

fn item(entry: &Entry) -> String {
    let kind = if entry.kind() == EntryKind::Directory { "directory" } else { "file" };
    // Milliseconds, which a double holds exactly for any time that is meant.
    let time = format!("{}.{:03}", entry.modified_ms.div_euclid(1000), entry.modified_ms.rem_euclid(1000));
    format!(r#"{{"name":{},"size":{},"type":"{kind}","mod_time":{time}}}"#, json!(entry.name), entry.size)
}

async fn exists(legacy: &Legacy, below: &str) -> Response {
    let Ok(path) = place::from_url(below) else { return denied() };
    let exists = match legacy.serving.look(legacy.below(path, Ask::Look)).await {
        Ok(_) => true,
        Err(fault) => match fault.code {
            Code::FileForbidden => return denied(),
            Code::UnknownFile | Code::WrongFileKind | Code::BadPath => false,
            _ => return message(StatusCode::INTERNAL_SERVER_ERROR, &fault.message),
        },
    };
    let shown = place::decode(below).map(place::text).unwrap_or_default();
    Json(json!({ "path": shown, "exists": exists })).into_response()
}
