//! Searches: what the guest tells is told, and what it does not end or tells too much of is refused.

use sandbar_api::Code;

use super::{Bed, Tested, code};
use crate::SearchQuery;

fn query(path: &str) -> SearchQuery {
    SearchQuery { path: path.into(), names: "f".into(), most: 3, ..SearchQuery::default() }
}

#[tokio::test]
async fn what_is_found_is_told_with_what_ended_it() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let found = bed.engine.search("a", query("src")).await?;
    assert_eq!(found.hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), ["f0", "f1", "f2"]);
    assert_eq!((found.looked_at, found.more, found.unreadable), (7, true, 1));
    assert_eq!(code(bed.engine.search("a", query("a\0b")).await), Some(Code::BadPath));
    assert_eq!(code(bed.engine.search("b", query("/")).await), Some(Code::UnknownSandbox));
    Ok(())
}

#[tokio::test]
async fn a_guest_that_tells_too_much_or_breaks_off_is_not_believed() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    for (path, word) in [("/endless", "more than it may"), ("/broken", "broke off")] {
        let refused = bed.engine.search("a", query(path)).await.err().ok_or("it is believed")?;
        assert_eq!(refused.code, Code::Internal, "{refused}");
        assert!(refused.detail.contains(word), "{refused}");
    }
    let old = bed.engine.search("a", query("/old")).await.err().ok_or("it cannot")?;
    assert!(old.fix.contains("Stop and start"), "{old}");
    Ok(())
}
