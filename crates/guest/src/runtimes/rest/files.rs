//! `/v1/files/{path}`: reading, replacing and removing what is below the root.

use axum::{
    body::Body,
    http::{
        StatusCode,
        header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE},
        request::Parts,
    },
    response::{IntoResponse as _, Response},
};
use serde_json::json;

use super::{Rest, range, refuse, time};
use crate::{
    error::{Code, Fault},
    files::{
        below::{Ask, Below, ESCAPES},
        part::Part,
    },
    protocol::{Entry, EntryKind},
    runtimes::{
        body::{self, Upload},
        place::{self, Misplaced},
    },
    worker::Frame,
};

const BYTES: &str = "application/octet-stream";
const JSON: &str = "application/json";

fn below(rest: &Rest, path: &str, ask: Ask) -> Result<Below, Fault> {
    let path = place::from_url(path).map_err(|misplaced| match misplaced {
        Misplaced::Escapes => Fault::new(Code::FileForbidden, ESCAPES),
        Misplaced::Nonsense => Fault::new(Code::BadPath, "the path cannot be read"),
    })?;
    Ok(Below { root: rest.root.clone().into(), path, ask })
}

/// What lies where no directory is, is not there.
fn absent(fault: Fault) -> Fault {
    match fault.code {
        Code::WrongFileKind => Fault { code: Code::UnknownFile, ..fault },
        _ => fault,
    }
}

pub(super) async fn head(rest: &Rest, path: &str) -> Result<Response, Fault> {
    let entry = rest.serving.look(below(rest, path, Ask::Look)?).await.map_err(absent)?;
    Ok(match entry.kind() {
        EntryKind::Directory => [(CONTENT_TYPE, JSON)].into_response(),
        EntryKind::File => {
            let length = entry.size.to_string();
            // A body of its own would be given its own length.
            let mut response = Response::new(Body::empty());
            for (name, value) in [(CONTENT_TYPE, BYTES), (ACCEPT_RANGES, "bytes"), (CONTENT_LENGTH, &length)] {
                response.headers_mut().extend(value.parse().ok().map(|value| (name, value)));
            }
            response
        }
        EntryKind::Symlink | EntryKind::Other => return Err(no_file()),
    })
}

fn no_file() -> Fault {
    Fault::new(Code::BadRequest, "the path is neither a file nor a directory")
}

pub(super) async fn get(rest: &Rest, path: &str, head: &Parts) -> Result<Response, Fault> {
    let part = range::asked(&head.headers);
    let asked = below(rest, path, Ask::Read(part))?;
    let shown = place::shown(&asked.path);
    let mut worker = rest.serving.work(asked).await?;
    let entry = match worker.receiver.next().await.map_err(absent)? {
        Frame::Entry(entry) => entry,
        _ => return Err(Fault::new(Code::Internal, "The file worker told nothing.")),
    };
    if entry.kind() == EntryKind::Directory {
        let before = format!("{{\"path\":{},\"entries\":[", json!(shown));
        let listing = body::listing(worker.receiver, before, "]}", item);
        return Ok(([(CONTENT_TYPE, JSON)], listing).into_response());
    }
    let Some((start, length)) = part.within(entry.size) else {
        let message = format!("the file has {} bytes, none of them in the range", entry.size);
        let refused = refuse(StatusCode::RANGE_NOT_SATISFIABLE, "INVALID_ARGUMENT", &message);
        return Ok(([(CONTENT_RANGE, format!("bytes */{}", entry.size))], refused).into_response());
    };
    let data = body::download(worker.receiver);
    let headers =
        [(CONTENT_TYPE, BYTES.to_owned()), (ACCEPT_RANGES, "bytes".into()), (CONTENT_LENGTH, length.to_string())];
    Ok(match part {
        Part::Whole => (headers, data).into_response(),
        Part::Between(..) | Part::Last(_) => {
            let range = format!("bytes {start}-{}/{}", start + length - 1, entry.size);
            (StatusCode::PARTIAL_CONTENT, headers, [(CONTENT_RANGE, range)], data).into_response()
        }
    })
}

fn item(entry: &Entry) -> String {
    let kind = if entry.kind() == EntryKind::Directory { "directory" } else { "file" };
    json!({
        "name": entry.name,
        "size": entry.size,
        "type": kind,
        "modified_at": time::rfc3339(entry.modified_ms),
        "mode": format!("{:04o}", entry.mode & 0o777),
    })
    .to_string()
}

pub(super) async fn put(rest: &Rest, path: &str, head: &Parts, body: Body) -> Result<Response, Fault> {
    let mode = query(head, "mode").map(|mode| parse_mode(&mode)).transpose();
    let asked = mode.and_then(|mode| below(rest, path, Ask::Write { mode }));
    let upload = Upload::open(&head.headers, body).await?;
    let asked = match asked {
        Ok(asked) => asked,
        Err(fault) => {
            upload.drain().await;
            return Err(fault);
        }
    };
    let worker = rest.serving.work(asked).await?;
    upload.store(worker).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn delete(rest: &Rest, path: &str, head: &Parts) -> Result<Response, Fault> {
    let recursive = match query(head, "recursive") {
        None => false,
        Some(text) => parse_bool(&text)?,
    };
    let mut worker = rest.serving.work(below(rest, path, Ask::Remove { recursive })?).await?;
    worker.receiver.done().await.map_err(absent)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn query(head: &Parts, name: &str) -> Option<String> {
    let query = head.uri.query()?;
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then(|| place::decode(value).map(place::text).unwrap_or_default())
    })
}

fn parse_mode(text: &str) -> Result<u32, Fault> {
    let digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = (text.len() == 4 && text.starts_with('0') && digits).then(|| u32::from_str_radix(text, 8).ok());
    mode.flatten().ok_or_else(|| Fault::new(Code::BadRequest, "mode must be an octal number like 0644"))
}

/// As Go reads a bool.
fn parse_bool(text: &str) -> Result<bool, Fault> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(Fault::new(Code::BadRequest, "recursive must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_flags_are_the_contracts() {
        assert_eq!(parse_mode("0644"), Ok(0o644));
        assert_eq!(parse_mode("0777"), Ok(0o777));
        for wrong in ["", "644", "0888", "1644", "00644", "0x1f", "+644", "rw-r"] {
            assert!(parse_mode(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_bool("true"), parse_bool("0")), (Ok(true), Ok(false)));
        assert!(parse_bool("yes").is_err() && parse_bool("").is_err());
    }
}
