//! Names and lines are found inside, with all fences up, and nothing else is.

use sandbar_guest::protocol::{SearchEnd, SearchHit, SearchRequest, search_reply::Event};

use super::{
    Case, Outcome, Subject,
    cases::{said, spec},
    inside::run,
    same,
};
use crate::{Guest, cases};

pub(super) fn all<S: Subject>() -> Vec<Case<S>> {
    cases![files_are_searched_inside]
}

async fn search(guest: &Guest, request: SearchRequest) -> Result<(Vec<SearchHit>, SearchEnd), String> {
    let told = |status: tonic::Status| status.to_string();
    let mut replies = guest.clone().search(request).await.map_err(told)?.into_inner();
    let mut hits = Vec::new();
    while let Some(reply) = replies.message().await.map_err(told)? {
        match reply.event {
            Some(Event::Hit(hit)) => hits.push(hit),
            Some(Event::End(end)) => return Ok((hits, end)),
            None => {}
        }
    }
    Err("the search broke off".into())
}

async fn files_are_searched_inside<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script = "cd /workspace && mkdir -p src .git && echo 'fn main() {}' > src/a.rs && echo 'fn x() {}' > .git/b.rs && \
                  touch -d 2001-01-01 src/a.rs && echo other > c.rs && ln -s /etc etc && mkfifo pipe && echo made";
    same("made", &run(&guest, script).await?.output.as_str(), &"made\n")?;
    let paths = |hits: &[SearchHit]| hits.iter().map(|hit| hit.path.clone()).collect::<Vec<_>>();
    let names = SearchRequest { path: "/workspace".into(), names: "**/*.rs".into(), ..SearchRequest::default() };
    let (hits, end) = search(&guest, names).await?;
    same("names, the newest first", &paths(&hits), &vec!["c.rs".to_owned(), "src/a.rs".to_owned()])?;
    same("a limit", &end.more, &false)?;
    let lines =
        SearchRequest { path: "/workspace".into(), pattern: Some(r"fn \w+\(".into()), ..SearchRequest::default() };
    let (hits, end) = search(&guest, lines.clone()).await?;
    same("lines", &paths(&hits), &vec!["src/a.rs".to_owned()])?;
    same("unreadable", &end.unreadable, &0)?;
    let (hits, _) = search(&guest, SearchRequest { all: true, ..lines }).await?;
    same("all lines", &paths(&hits), &vec![".git/b.rs".to_owned(), "src/a.rs".to_owned()])?;
    // The whole of what it sees, the kernel's own files left out.
    let passwd = SearchRequest { path: "/".into(), names: "passwd".into(), ..SearchRequest::default() };
    let (hits, _) = search(&guest, passwd).await?;
    same("from the root", &paths(&hits).contains(&"etc/passwd".to_owned()), &true)?;
    same("of /proc", &hits.iter().any(|hit| hit.path.starts_with("proc/")), &false)?;
    provider.destroy(&spec.id).await.map_err(said)
}
