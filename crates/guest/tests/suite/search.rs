//! Names and lines, found by a worker.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use sandbar_guest::protocol::{SearchEnd, SearchHit, SearchRequest, search_reply::Event};
use tonic::Status;

use crate::support::{Guest, Outcome, code, code_of, until};

async fn search(guest: &Guest, request: SearchRequest) -> Result<(Vec<SearchHit>, SearchEnd), Status> {
    let request = SearchRequest { path: guest.text_path(&request.path), ..request };
    let mut stream = guest.client.clone().search(request).await?.into_inner();
    let mut hits = Vec::new();
    let mut end = None;
    while let Some(reply) = stream.message().await? {
        assert!(end.is_none(), "something came after the end");
        match reply.event {
            Some(Event::Hit(hit)) => hits.push(hit),
            Some(Event::End(last)) => end = Some(last),
            None => {}
        }
    }
    Ok((hits, end.ok_or_else(|| Status::internal("no end"))?))
}

fn names(path: &str, names: &str) -> SearchRequest {
    SearchRequest { path: path.into(), names: names.into(), ..SearchRequest::default() }
}

fn lines(path: &str, pattern: &str) -> SearchRequest {
    SearchRequest { path: path.into(), pattern: Some(pattern.into()), ..SearchRequest::default() }
}

pub(crate) async fn finds_names_and_lines(guest: Guest) -> Outcome {
    fs::create_dir_all(guest.path("tree/src"))?;
    fs::write(guest.path("tree/src/main.rs"), "fn main() {\n    hello();\n}\n")?;
    fs::write(guest.path("tree/notes"), "say hello\n")?;
    let (hits, end) = search(&guest, names("tree", "**/*.rs")).await?;
    assert_eq!(hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), ["src/main.rs"]);
    assert_eq!(end, SearchEnd { looked_at: 3, more: false, unreadable: 0 });
    let (hits, _) = search(&guest, SearchRequest { before: 1, ..lines("tree", r"\bhello\b") }).await?;
    let told: Vec<_> = hits.iter().map(|hit| (hit.path.as_str(), hit.line, hit.context)).collect();
    assert_eq!(told, [("notes", 1, false), ("src/main.rs", 1, true), ("src/main.rs", 2, false)]);
    // More than one buffer of answers.
    fs::write(guest.path("tree/many"), "a line that is found\n".repeat(50_000))?;
    let (hits, end) = search(&guest, SearchRequest { most: 20_000, ..lines("tree", "found$") }).await?;
    assert_eq!((hits.len(), end.more), (10_000, true));
    assert_eq!(hits.last().map(|hit| hit.line), Some(10_000));
    until("the workers to end", || guest.children().is_empty()).await
}

pub(crate) async fn is_done_as_the_workload(guest: Guest) -> Outcome {
    fs::create_dir_all(guest.path("tree/closed"))?;
    fs::write(guest.path("tree/closed/file"), "hello\n")?;
    fs::write(guest.path("tree/secret"), "hello\n")?;
    let (hits, end) = search(&guest, lines("tree", "hello")).await?;
    assert_eq!((hits.len(), end.unreadable), (2, 0), "open, both are found");
    fs::set_permissions(guest.path("tree/secret"), fs::Permissions::from_mode(0o0))?;
    fs::set_permissions(guest.path("tree/closed"), fs::Permissions::from_mode(0o0))?;
    let (hits, end) = search(&guest, lines("tree", "hello")).await?;
    assert_eq!((hits.len(), end.unreadable), (0, 2));
    let closed = search(&guest, lines("tree/closed", "hello")).await;
    fs::set_permissions(guest.path("tree/closed"), fs::Permissions::from_mode(0o700))?;
    assert_eq!(code_of(closed), "file_forbidden");
    assert_eq!(code_of(search(&guest, lines("tree/secret", "hello")).await), "file_forbidden");
    Ok(())
}

pub(crate) async fn tells_what_is_wrong(guest: Guest) -> Outcome {
    fs::write(guest.path("file"), "text")?;
    symlink("nowhere", guest.path("broken"))?;
    for (request, expected) in [
        (lines("", "("), "bad_request"),
        (names("", "{a"), "bad_request"),
        (SearchRequest { after: 51, ..lines("", "a") }, "bad_request"),
        (names("missing", ""), "unknown_file"),
        (lines("broken", "a"), "unknown_file"),
        (lines("file/below", "a"), "wrong_file_kind"),
        (lines("guest.sock", "a"), "wrong_file_kind"),
    ] {
        let what = format!("{request:?}");
        assert_eq!(code_of(search(&guest, request).await), expected, "{what}");
    }
    let relative = guest.client.clone().search(lines("file", "a")).await;
    assert_eq!(relative.err().as_ref().map(code), Some("bad_path"));
    Ok(())
}

pub(crate) async fn ends_with_its_caller(guest: Guest) -> Outcome {
    // Enough that the worker cannot have told all before its caller leaves.
    let line = "x".repeat(1500) + "\n";
    fs::write(guest.path("many"), line.repeat(9000))?;
    let request = SearchRequest { most: 10_000, ..lines(&guest.text_path("many"), "x") };
    let mut stream = guest.client.clone().search(request).await?.into_inner();
    stream.message().await?;
    assert_eq!(guest.children().len(), 1);
    drop(stream);
    until("the worker to end", || guest.children().is_empty()).await
}

pub(crate) async fn has_a_few_at_once(guest: Guest) -> Outcome {
    fs::write(guest.path("many"), ("x".repeat(1500) + "\n").repeat(9000))?;
    let search = || {
        let (mut client, path) = (guest.client.clone(), guest.text_path("many"));
        let request = SearchRequest { most: 10_000, ..lines(&path, "x") };
        tokio::spawn(async move { client.search(request).await.map(tonic::Response::into_inner) })
    };
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(search().await??);
    }
    let mut waits = search();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), &mut waits).await.is_err());
    assert_eq!(guest.children().len(), 4);
    open.pop();
    waits.await??;
    Ok(())
}
