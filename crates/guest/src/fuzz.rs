//! What the guest reads from others: paths of requests, messages between guest and minder.

use std::path::Component;

use bolero::check;

use crate::{
    minder::{MESSAGE, Order, Report},
    worker,
};

#[test]
fn fuzz_minder_messages() {
    check!().with_type::<[u8; MESSAGE]>().cloned().for_each(|bytes| {
        if let Some(report) = Report::from_bytes(bytes) {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        if let Some(order) = Order::from_bytes(bytes) {
            assert_eq!(Order::from_bytes(order.to_bytes()), Some(order));
        }
    });
}

#[test]
fn fuzz_path() {
    const WORDS: [&str; 9] = ["/", "/", "a", "..", ".", "workspace", "\0", " ", "ü"];
    check!().with_max_len(32).for_each(|bytes| {
        let text: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
        let Ok(path) = worker::path(text.clone()) else {
            assert!(!text.starts_with('/') || text.contains('\0'), "{text:?} was refused");
            return;
        };
        assert!(path.is_absolute(), "{text:?}");
        assert!(!path.components().any(|part| part == Component::CurDir), "{text:?}");
        let Some(again) = path.to_str() else { panic!("{path:?} was text") };
        assert!(!again.contains("//") && (again == "/" || !again.ends_with('/')), "{text:?}: {again:?}");
        assert!(worker::path(again.to_owned()).is_ok_and(|again| again == path), "{text:?}");
    });
}
