//! Names and lines, found in the sandbox's files.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::{mcp::wire::call, support::Bench};

pub(crate) async fn search(bench: &Bench) {
    let place = bench.directory.path().join("files/search");
    fs::create_dir_all(place.join("src/deep")).unwrap();
    let ages = [("src/new.rs", 1), ("src/deep/old.rs", 100), ("middle.rs", 50), ("other.txt", 3), (".hidden.rs", 2)];
    for (name, age) in ages {
        let file = place.join(name);
        fs::write(&file, format!("fn {}() {{\n    Needle\n}}\n", name.len())).unwrap();
        let then = SystemTime::now() - Duration::from_secs(age);
        fs::File::options().write(true).open(&file).unwrap().set_modified(then).unwrap();
    }
    let at = |name: &str| place.join(name).display().to_string();
    let run = async |tool: &str, mut arguments: Value| {
        if arguments["path"].is_null() {
            arguments["path"] = json!(place);
        }
        call(bench, tool, arguments).await
    };
    let (failed, text, value) = run("glob", json!({"pattern": "**/*.rs"})).await;
    let all = [at("src/new.rs"), at("middle.rs"), at("src/deep/old.rs")];
    assert!(!failed && text == format!("{}\n", all.join("\n")), "{text}");
    assert_eq!(value, json!({"files": all, "more": false, "unreadable": 0}));
    let (_, text, value) = run("glob", json!({"pattern": "*.rs", "limit": 1, "hidden": true})).await;
    assert!(text.starts_with(&format!("{}\n(There is more: the limit was 1", at("src/new.rs"))), "{text}");
    assert_eq!(value["more"], true);
    assert!(run("glob", json!({"pattern": "*.rs", "hidden": true})).await.1.contains(".hidden.rs"));
    let (_, text, _) = call(bench, "glob", json!({"pattern": at("src/**/*.rs")})).await;
    assert_eq!(text, format!("{}\n{}\n", at("src/new.rs"), at("src/deep/old.rs")), "a whole path as the pattern");
    assert_eq!(run("glob", json!({"pattern": "*.none"})).await.1, "Nothing was found.\n");

    let (_, text, value) = run("grep", json!({"pattern": "needle", "ignore_case": true, "glob": "*.txt"})).await;
    assert_eq!(text, format!("{}:2:    Needle\n", at("other.txt")));
    assert_eq!(value["lines"][0], json!({"path": at("other.txt"), "line": 2, "text": "    Needle"}));
    let (_, text, _) = run("grep", json!({"pattern": "Needle", "path": at("middle.rs"), "before": 1})).await;
    let middle = at("middle.rs");
    assert_eq!(text, format!("{middle}-1-fn 9() {{\n{middle}:2:    Needle\n"));
    let (_, text, value) = run("grep", json!({"pattern": "Needle", "output_mode": "files"})).await;
    assert_eq!((text.lines().count(), value["files"].as_array().unwrap().len()), (4, 4), "{text}");
    let (_, text, value) = run("grep", json!({"pattern": ".", "glob": "*.txt", "output_mode": "count"})).await;
    assert_eq!(text, format!("{}:3\n", at("other.txt")));
    assert_eq!(value["counts"], json!([{"path": at("other.txt"), "count": 3}]));
    let (_, text, value) = run("grep", json!({"pattern": "Needle", "limit": 2, "context": 1})).await;
    assert!(text.contains("\n--\n") && text.contains("(There is more") && value["more"] == true, "{text}");
    for (tool, arguments, says) in [
        ("grep", json!({"pattern": "a(b"}), "regular expression"),
        ("grep", json!({"pattern": "x", "path": at("none")}), "failed to search for `x` in"),
        ("grep", json!({"pattern": "x", "context": 51}), "context"),
        ("glob", json!({"pattern": "a[b"}), "failed to look for a[b in"),
        ("glob", json!({"pattern": "x", "path": at("none")}), "failed to look for x in"),
    ] {
        let (failed, text, _) = run(tool, arguments).await;
        assert!(failed && text.contains(says), "{tool}: {text}");
    }
}
