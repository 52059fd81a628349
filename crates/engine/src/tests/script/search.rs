//! Searches of scripted guests: a file is found for each that is asked for; below `/endless` without end, below `/broken`
//! without a last word, below `/old` not at all.

use futures_util::stream;
use sandbar_guest::protocol::{SearchEnd, SearchHit, SearchReply, SearchRequest, search_reply::Event};
use tonic::Status;

use super::guest::Boxed;

pub(super) fn replies(request: SearchRequest) -> Result<Boxed<SearchReply>, Status> {
    let SearchRequest { path, names, most, .. } = request;
    let found = move |number| {
        let text = vec![b'x'; 1 << 16].into();
        let hit = SearchHit { path: format!("{names}{number}"), text, ..SearchHit::default() };
        Ok(SearchReply { event: Some(Event::Hit(hit)) })
    };
    let end = SearchEnd { looked_at: 7, more: true, unreadable: 1 };
    let end = Ok(SearchReply { event: Some(Event::End(end)) });
    Ok(match path.as_str() {
        "/endless" => Box::pin(stream::iter((0..).map(found))),
        "/broken" => Box::pin(stream::iter((0..most).map(found))),
        "/old" => return Err(Status::unimplemented("search")),
        _ => Box::pin(stream::iter((0..most).map(found).chain([end]))),
    })
}
