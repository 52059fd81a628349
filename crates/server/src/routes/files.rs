//! Files of a sandbox: read with Range, written atomically, listed, removed, and whole trees as tar archives.
//!
//! Whatever a sandbox wrote is sent as an attachment of opaque bytes: its HTML must never run on our origin.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Entry, EntryKind, Listing, Problem};
use sandbar_engine::{ByteStream, Engine};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::range::{self, Wanted};
use crate::{
    access::Looking,
    extract::{Path, Query},
    problem::{Refused, Result, bad_request, streamed},
    registry::{Routes, routes},
    upload,
};

const FILE_MODE: HeaderName = HeaderName::from_static("sandbar-file-mode");

pub(super) fn routes() -> Routes {
    // A wildcard does not match nothing, and nothing means `/`.
    let root = routing::get(read).put(write).delete(remove);
    Routes::default()
        .routes(routes!(read, write, remove))
        .route("/v1/sandboxes/{sandbox}/files", root.clone())
        .route("/v1/sandboxes/{sandbox}/files/", root)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct FilePath {
    /// The sandbox's id or name.
    sandbox: String,
    /// An absolute path inside the sandbox without its first slash; `etc/hosts` is /etc/hosts. Other slashes stay.
    #[serde(default)]
    path: String,
}

impl FilePath {
    /// The engine judges the path; a relative one would start at the workspace there.
    fn absolute(&self) -> String {
        format!("/{}", self.path)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    Tar,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    /// `tar`: the file or tree as an archive.
    #[param(inline)]
    format: Option<Format>,
}

/// Read a file or list a directory
///
/// A file comes as bytes, with Range for a part of it; a directory as a Listing; either as an archive with `format=tar`.
/// HEAD gives the headers alone. What of a tree cannot be archived is left out, and told at its place in a global pax
/// header with the records `SANDBAR.skipped` (its path) and `SANDBAR.skipped.why`, which other readers of tar ignore.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/files/{*path}", operation_id = "read_file", tag = "files",
    params(FilePath, ReadQuery, ("Range" = Option<String>, Header, description = "One range, for example `bytes=0-99`.")),
    responses(
        (status = 200, description = "The file, listing or archive.",
            content((String = "application/octet-stream"), (Listing = "application/json"), (String = "application/x-tar")),
            headers(
                ("Sandbar-File-Mode" = String, description = "Octal, for example `0644`; of a file."),
                ("Last-Modified" = String, description = "Of a file."),
                ("Accept-Ranges" = String, description = "`bytes`; of a file."),
                ("Content-Disposition" = String, description = "`attachment`; of a file or archive."),
            )),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream",
            headers(("Content-Range" = String, description = "What part of how much."))),
        (status = 400, description = "`bad_path`, `path_outside`, `bad_request`"),
        (status = 403, description = "`file_forbidden`, `forbidden`, `foreign_host`, `foreign_origin`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_file`"),
        (status = 409, description = "`wrong_state`, also by a viewer's token where idleness put the sandbox away; `wrong_file_kind`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 416, description = "`offset_beyond`"),
    )
)]
async fn read(
    Looking(engine): Looking,
    method: Method,
    Path(path): Path<FilePath>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let at = path.absolute();
    if query.format == Some(Format::Tar) {
        let body = if method == Method::HEAD {
            engine.stat(&path.sandbox, &at).await?;
            Body::empty()
        } else {
            streamed(engine.pack(&path.sandbox, &at).await?)
        };
        let mut response = attachment(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
        return Ok(response);
    }
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    if method != Method::HEAD && range.is_none() {
        return match engine.read_file(&path.sandbox, &at, 0, None).await {
            Ok((entry, bytes)) => Ok(whole(&entry, bytes)),
            Err(problem) if problem.code == Code::WrongFileKind => {
                // Neither file nor directory: what it is was said the first time.
                let listed = listing(&engine, &path.sandbox, &at).await;
                listed.map_err(|refused| if refused.0.code == Code::WrongFileKind { Refused(problem) } else { refused })
            }
            Err(problem) => Err(Refused(problem)),
        };
    }
    let entry = engine.stat(&path.sandbox, &at).await?;
    if entry.kind == EntryKind::Directory {
        return listing(&engine, &path.sandbox, &at).await;
    }
    if method == Method::HEAD {
        return Ok(whole(&entry, Box::pin(stream::empty())));
    }
    match range::parse(range, entry.size) {
        Wanted::Whole => {
            let (entry, bytes) = engine.read_file(&path.sandbox, &at, 0, None).await?;
            Ok(whole(&entry, bytes))
        }
        Wanted::Part { offset, length } => {
            let (entry, bytes) = engine.read_file(&path.sandbox, &at, offset, Some(length)).await?;
            Ok(part(&entry, bytes, offset, length))
        }
        Wanted::Beyond => Ok(beyond(&entry)),
    }
}

async fn listing(engine: &Engine, sandbox: &str, path: &str) -> Result<Response> {
    Ok(axum::Json(engine.list_directory(sandbox, path).await?).into_response())
}

fn attachment(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    response
}

fn describe(entry: &Entry, body: Body) -> Response {
    let mut response = attachment(body);
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let modified = entry.modified_at.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    for (name, value) in [(FILE_MODE, &entry.mode), (header::LAST_MODIFIED, &modified)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn whole(entry: &Entry, bytes: ByteStream) -> Response {
    // Files of /proc say 0 and hold something: they are sent until they end.
    if entry.size == 0 {
        return describe(entry, streamed(bytes));
    }
    let mut response = describe(entry, streamed(exactly(bytes, entry.size)));
    response.headers_mut().insert(header::CONTENT_LENGTH, entry.size.into());
    response
}

fn part(entry: &Entry, bytes: ByteStream, offset: u64, length: u64) -> Response {
    let mut response = describe(entry, streamed(exactly(bytes, length)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    if let Ok(range) = HeaderValue::from_str(&format!("bytes {offset}-{}/{}", offset + length - 1, entry.size)) {
        headers.insert(header::CONTENT_RANGE, range);
    }
    response
}

fn beyond(entry: &Entry) -> Response {
    let problem = Problem::new(
        Code::OffsetBeyond,
        format!("The range starts past the end of the file, which has {} bytes.", entry.size),
        "Ask for a range that starts below that.",
    );
    let mut response = Refused(problem).into_response();
    if let Ok(range) = HeaderValue::from_str(&format!("bytes */{}", entry.size)) {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    response
}

/// As many bytes as the head promised, of a file that may grow or shrink meanwhile: more is left out, less is an error.
pub(crate) fn exactly(bytes: ByteStream, length: u64) -> ByteStream {
    Box::pin(stream::unfold((bytes, length), async |(mut bytes, left)| {
        if left == 0 {
            return None;
        }
        match bytes.next().await {
            Some(Ok(mut piece)) => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - piece.len() as u64;
                Some((Ok(piece), (bytes, left)))
            }
            Some(Err(problem)) => Some((Err(problem), (bytes, 0))),
            None => {
                let detail = format!("The file became shorter while it was read; {left} bytes are missing.");
                let problem = Problem::new(Code::Internal, detail, "Read it again when nothing writes it.");
                Some((Err::<Bytes, _>(problem), (bytes, 0)))
            }
        }
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WriteQuery {
    /// Permission bits in octal, for example `0644`. Of a file that exists they stay when absent.
    mode: Option<String>,
    /// `tar`: unpack the archive into the directory.
    #[param(inline)]
    format: Option<Format>,
}

fn mode(text: &str) -> std::result::Result<u32, Problem> {
    let octal = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte)).then(|| u32::from_str_radix(text, 8).ok());
    octal.flatten().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        bad_request(format!("`{}` is not a file mode.", text.escape_debug()), "Write it in octal, for example 0644.")
    })
}

fn is_tar(headers: &HeaderMap) -> bool {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    declared.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/x-tar")
}

#[derive(Serialize, ToSchema)]
struct Unpacked {
    /// Files, directories and links of the archive.
    entries: u64,
}

/// Write a file, or unpack an archive
///
/// A file appears whole or not at all. With `format=tar` the archive is unpacked into the directory; without it a body
/// of the type `application/x-tar` is refused, because one of the two is a mistake.
#[utoipa::path(
    put, path = "/v1/sandboxes/{sandbox}/files/{*path}", operation_id = "write_file", tag = "files",
    params(FilePath, WriteQuery),
    request_body(description = "The file's bytes; `application/x-tar`, the archive, only with `format=tar`.",
        content((String = "application/octet-stream"), (String = "application/x-tar"))),
    responses(
        (status = 204, description = "Written."),
        (status = 200, description = "Unpacked.", body = Unpacked),
        (status = 400, description = "`bad_path`, `path_outside`, `bad_request`, `bad_archive`"),
        (status = 403, description = "`file_forbidden`, `forbidden`, `foreign_host`, `foreign_origin`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_file`"),
        (status = 409, description = "`wrong_state`, `wrong_file_kind`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 413, description = "`too_large`"),
        (status = 415, description = "`unsupported_media`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn write(
    State(engine): State<Engine>,
    Path(path): Path<FilePath>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let at = path.absolute();
    let mode = query.mode.as_deref().map(mode).transpose()?;
    if query.format == Some(Format::Tar) {
        if mode.is_some() {
            return Err(bad_request("An archive has its own modes.", "Leave `mode` out.").into());
        }
        let entries = upload::feed(body, |bytes| engine.unpack(&path.sandbox, &at, bytes)).await?;
        return Ok(axum::Json(Unpacked { entries }).into_response());
    }
    if is_tar(&headers) {
        return Err(Refused(Problem::new(
            Code::UnsupportedMedia,
            "The body is declared as a tar archive, but the request is to write a file.",
            "Add `?format=tar` to unpack it; to keep it as a file, send `Content-Type: application/octet-stream`.",
        )));
    }
    upload::feed(body, |bytes| engine.write_file(&path.sandbox, &at, mode, bytes)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// A directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Remove a file or directory
#[utoipa::path(
    delete, path = "/v1/sandboxes/{sandbox}/files/{*path}", operation_id = "remove_file", tag = "files",
    params(FilePath, RemoveQuery),
    responses(
        (status = 204, description = "Gone."),
        (status = 400, description = "`bad_path`, `path_outside`"),
        (status = 403, description = "`file_forbidden`, `forbidden`, `foreign_host`, `foreign_origin`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_file`"),
        (status = 409, description = "`wrong_state`, `directory_not_empty`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn remove(
    State(engine): State<Engine>,
    Path(path): Path<FilePath>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode> {
    engine.remove(&path.sandbox, &path.absolute(), query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0644"), Ok(0o644));
        assert_eq!(mode("7777"), Ok(0o7777));
        for text in ["", "0o644", "99", "+7", "10000", "rw"] {
            assert!(mode(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_promised_length_is_kept_or_broken_loudly() {
        let pieces = || Box::pin(stream::iter(["abc", "def"].map(|text| Ok(Bytes::from(text))))) as ByteStream;
        for (length, want, fails) in [(6, "abcdef", false), (4, "abcd", false), (3, "abc", false), (7, "abcdef", true)]
        {
            let items: Vec<_> = exactly(pieces(), length).collect().await;
            assert_eq!(items.iter().any(std::result::Result::is_err), fails, "{length}");
            let bytes: Vec<u8> = items.into_iter().flatten().flatten().collect();
            assert_eq!(bytes, want.as_bytes(), "{length}");
        }
    }
}
