use bytes::Bytes;

use super::*;

fn hit(path: &str, line: u64, text: &str, context: bool) -> Hit {
    Hit {
        path: path.to_owned(),
        kind: EntryKind::File,
        size: 1,
        modified_at: chrono::DateTime::default(),
        line,
        text: Bytes::copy_from_slice(text.as_bytes()),
        context,
        cut: false,
    }
}

fn hits(hits: Vec<Hit>) -> Hits {
    Hits { hits, looked_at: 9, more: false, unreadable: 0 }
}

fn text(found: Found) -> String {
    let result = answer(found, 200).unwrap_or_else(|why| panic!("{why}"));
    result.content[0].as_text().map(|content| content.text.clone()).unwrap_or_default()
}

#[test]
fn whole_paths_are_patterns_too() {
    for (path, pattern, place, names) in [
        ("", "*.rs", ".", "*.rs"),
        ("src", "**/*.rs", "src", "**/*.rs"),
        ("", "/workspace/src/**/*.rs", "/workspace/src", "/**/*.rs"),
        ("", "/workspace/a{b,c}", "/workspace", "/a{b,c}"),
        ("", "/etc/passwd", "/etc", "/passwd"),
        ("", "/*", "/", "/*"),
        ("/x", "/x/*", "/x", "/x/*"),
    ] {
        assert_eq!(split(path, pattern), (place.to_owned(), names.to_owned()), "{path} {pattern}");
    }
}

#[test]
fn paths_are_told_as_tools_take_them() {
    for (base, path, want) in [
        (".", "a", "a"),
        ("", "a", "a"),
        ("./s", "a", "s/a"),
        ("s", "a/b", "s/a/b"),
        ("/", "a", "/a"),
        ("/s/", "a", "/s/a"),
    ] {
        assert_eq!(joined(base, path), want, "{base}");
    }
    assert_eq!(joined(&parent("src/a.rs"), "a.rs"), "src/a.rs");
    assert_eq!(joined(&parent("/a.rs"), "a.rs"), "/a.rs");
    assert_eq!(joined(&parent("a.rs"), "a.rs"), "a.rs");
    assert!(of_itself("src/a.rs", "a.rs") && !of_itself("src", "a.rs"));
}

#[test]
fn lines_as_grep_tells_them() {
    let found = matched("s", hits(vec![hit("a", 7, "x", false), hit("b", 1, "y", false)]), Mode::Content, 200);
    assert_eq!(text(found), "s/a:7:x\ns/b:1:y\n");
    let around = vec![
        hit("a", 1, "before", true),
        hit("a", 2, "x", false),
        hit("a", 9, "before", true),
        hit("a", 10, "x", false),
        hit("b", 11, "x", false),
    ];
    let found = matched(".", hits(around), Mode::Content, 200);
    assert_eq!(text(found), "a-1-before\na:2:x\n--\na-9-before\na:10:x\n--\nb:11:x\n");
}

#[test]
fn files_and_counts() {
    let three = || hits(vec![hit("a", 7, "x", false), hit("a", 8, "x", false), hit("b", 1, "y", false)]);
    assert_eq!(text(matched(".", three(), Mode::Files, 200)), "a\nb\n");
    assert_eq!(text(matched("/s", three(), Mode::Count, 200)), "/s/a:2\n/s/b:1\n");
    let cut = matched(".", three(), Mode::Count, 1);
    assert!(cut.more && cut.len() == 1);
}

#[test]
fn directories_are_no_files() {
    let mut found = hits(vec![hit("new", 0, "", false), hit("dir", 0, "", false), hit("old", 0, "", false)]);
    found.hits[1].kind = EntryKind::Directory;
    assert_eq!(text(named("d", found.clone(), 200)), "d/new\nd/old\n");
    assert_eq!(named("d", found, 1).files, Some(vec!["d/new".to_owned()]));
}

#[test]
fn what_is_missing_is_told() {
    assert_eq!(text(named(".", hits(vec![]), 200)), "Nothing was found.\n");
    let cut = Hits { more: true, unreadable: 3, ..hits(vec![hit("a", 1, "x", false)]) };
    let told = text(matched(".", cut, Mode::Content, 200));
    assert!(told.starts_with("a:1:x\n(There is more: the limit was 200"), "{told}");
    assert!(told.ends_with("(3 files or directories could not be read.)\n"), "{told}");
    let long = (0..100).map(|number| hit("a", number + 1, &"x".repeat(1000), false)).collect();
    let result = answer(matched(".", hits(long), Mode::Content, 200), 200).unwrap_or_else(|why| panic!("{why}"));
    let told = result.content[0].as_text().map(|content| content.text.clone()).unwrap_or_default();
    assert!(told.len() < LONGEST + 200 && told.contains("(More than 65536 bytes were found"), "{}", told.len());
    let structured = result.structured_content.unwrap_or_default();
    assert_eq!(structured["lines"].as_array().map(Vec::len), Some(65));
    assert_eq!(structured["more"], true);
}

#[test]
fn limits_are_checked() {
    assert_eq!(checked(None, 200), Ok(200));
    assert!(checked(Some(0), 200).is_err() && checked(Some(10_001), 200).is_err());
}

#[test]
fn names_stay_on_their_line() {
    let found = named(".", hits(vec![hit("a\nb:1:\u{1b}x", 0, "", false)]), 200);
    let shown = serde_json::to_string(&found).unwrap_or_default();
    assert!(shown.contains("a\\nb:1:"), "{shown}");
    assert!(text(found).starts_with("a\\nb:1:\\u{1b}x\n"));
}
