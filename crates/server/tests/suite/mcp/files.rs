//! Files over MCP: read, written, listed, edited, by whoever works in the sandbox.

use std::fs;

use serde_json::{Value, json};

use crate::{
    mcp::wire::{TOOLS, ask, call},
    support::Bench,
};

pub(crate) async fn files(bench: &Bench) {
    let place = bench.directory.path().join("files/mcp");
    let at = |name: &str| place.join(name).display().to_string();
    let (failed, text, value) =
        call(bench, "write_file", json!({"path": at("deep/er/a.txt"), "content": "one\ntwo\nthree\n"})).await;
    assert_eq!((failed, text.as_str(), value), (false, r#"{"ok":true}"#, json!({"ok": true})));
    let read = async |arguments: Value| call(bench, "read_file", arguments).await;
    assert_eq!(read(json!({"path": at("deep/er/a.txt")})).await.1, "one\ntwo\nthree\n");
    assert_eq!(read(json!({"path": at("deep/er/a.txt"), "offset": 2, "limit": 1})).await.1, "two\n");
    fs::write(place.join("b"), "b").unwrap();
    std::os::unix::fs::symlink("b", place.join("c")).unwrap();
    let (_, text, value) = call(bench, "list_dir", json!({"path": at("")})).await;
    let entries = value["entries"].as_array().unwrap();
    let kinds: Vec<_> =
        entries.iter().map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("b", "file"), ("c", "file"), ("deep", "dir")]);
    assert!(text.starts_with(r#"{"entries":[{"name":"b","type":"file","size":1},"#), "{text}");
    fs::write(place.join("binary"), [0x7f, b'E', 0xff, 0]).unwrap();
    fs::write(place.join("large"), "line\n".repeat(300_000)).unwrap();
    let said = async |tool: &str, arguments: Value, begins: String, contains: &str| {
        let (failed, text, _) = call(bench, tool, arguments).await;
        assert!(failed && text.starts_with(&begins) && text.contains(contains), "{text}");
    };
    let missing = at("missing");
    said("read_file", json!({"path": missing}), format!("failed to read file {missing}: "), "").await;
    said("list_dir", json!({"path": missing}), format!("failed to list directory {missing}: "), "").await;
    said("read_file", json!({"path": ""}), "path must not be empty".to_owned(), "").await;
    said("write_file", json!({"path": "", "content": ""}), "path must not be empty".to_owned(), "").await;
    said("write_file", json!({"path": at("b/x"), "content": ""}), format!("failed to write file {}: ", at("b/x")), "")
        .await;
    said(
        "read_file",
        json!({"path": at("binary")}),
        format!("failed to read file {}: ", at("binary")),
        "it is binary: data, 4 bytes",
    )
    .await;
    said("read_file", json!({"path": at("large")}), format!("failed to read file {}: ", at("large")), "1500000 bytes")
        .await;
    said("read_file", json!({"path": at("large"), "offset": 300_001}), String::new(), "only 300000 lines").await;
    said(
        "read_file",
        json!({"path": "/../../etc/passwd"}),
        "failed to read file /../../etc/passwd: ".to_owned(),
        "outside",
    )
    .await;
    assert_eq!(read(json!({"path": at("large"), "offset": 299_999, "limit": 9})).await.1, "line\nline\n");
}

/// Whoever else works in the sandbox sees what the tools do.
pub(crate) async fn shared(bench: &Bench) {
    let sign = bench.directory.path().join("files/sign").display().to_string();
    let script = format!("until [ -e {sign} ]; do sleep 0.01; done; exit 5");
    let process = bench.start(json!({"argv": ["sh", "-c", script], "cwd": "/"})).await;
    assert!(!call(bench, "write_file", json!({"path": sign, "content": "go"})).await.0);
    assert_eq!(bench.ended(process.id.as_str()).await.exit.map(|exit| exit.code), Some(5));
    assert_eq!(bench.get(&bench.at("sign")).await.text(), "go");
}

pub(crate) async fn edits(bench: &Bench) {
    let file = bench.directory.path().join("files/edit.sh");
    fs::write(&file, "a b a\n").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    let edit = async |old: &str, new: &str, all: bool| {
        call(bench, "edit_file", json!({"path": file, "old_string": old, "new_string": new, "replace_all": all})).await
    };
    assert_eq!(edit("b", "c", false).await.2, json!({"ok": true, "replaced": 1}));
    assert!(edit("a", "d", false).await.1.contains("in it 2 times"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "a c a\n");
    assert_eq!(edit("a", "d", true).await.2, json!({"ok": true, "replaced": 2}));
    assert_eq!(fs::read_to_string(&file).unwrap(), "d c d\n");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o750);
}

pub(crate) async fn binary(bench: &Bench) {
    let place = bench.directory.path().join("files");
    let read = async |arguments: Value| {
        let answer = ask(bench, TOOLS, "tools/call", json!({"name": "read_file", "arguments": arguments})).await;
        answer["result"].clone()
    };
    let png = [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0xff; 2 << 20]].concat();
    let file = place.join("a.png");
    fs::write(&file, &png).unwrap();
    let image = read(json!({"path": file})).await;
    assert_eq!(
        (&image["content"][0]["type"], &image["content"][0]["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    let data = sandbar_api::bytes::decode(image["content"][0]["data"].as_str().unwrap());
    assert!(data.is_some_and(|data| data == png));
    fs::write(&file, [png.as_slice(), &png].concat()).unwrap();
    let huge = read(json!({"file_path": file})).await;
    let text = huge["content"][0]["text"].as_str().unwrap();
    assert!(huge["isError"] == true && text.contains("it is an image of 4194320 bytes"), "{text}");
    let file = place.join("a b.pdf");
    fs::write(&file, b"%PDF-1.7\xff").unwrap();
    let named = read(json!({"path": file})).await;
    let text = named["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("a PDF document, 9 bytes") && text.contains("encoding \"base64\""), "{text}");
    let given = read(json!({"path": file, "encoding": "base64"})).await;
    let resource = &given["content"][0]["resource"];
    assert_eq!((&resource["mimeType"], &resource["blob"]), (&json!("application/pdf"), &json!("JVBERi0xLjf/")));
    assert!(resource["uri"].as_str().is_some_and(|uri| uri.starts_with("file:///") && uri.ends_with("/a%20b.pdf")));
    fs::write(&file, vec![0; 256 * 1024 + 1]).unwrap();
    let refused = read(json!({"path": file, "encoding": "base64"})).await;
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("262145 bytes, more than the 262144"));
    let lines = read(json!({"path": file, "encoding": "base64", "limit": 1})).await;
    assert!(lines["isError"] == true, "{lines}");
}

/// What a sandbox may put in the way.
pub(crate) async fn odd(bench: &Bench) {
    use std::os::unix::ffi::OsStrExt as _;
    let place = bench.directory.path().join("files/odd");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink("loop", place.join("loop")).unwrap();
    fs::File::create(place.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    fs::write(place.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.join("fifo"), rustix::fs::Mode::RWXU).unwrap();
    for (tool, name, more, says) in [
        ("read_file", "loop", json!({}), "failed to read file"),
        ("write_file", "loop/x", json!({"content": ""}), "failed to write file"),
        ("list_dir", "loop", json!({}), "failed to list directory"),
        ("read_file", "fifo", json!({}), "failed to read file"),
        ("read_file", "", json!({}), "failed to read file"),
        ("read_file", "sparse", json!({}), "1099511627776 bytes, more than"),
        ("read_file", "sparse", json!({"offset": 1, "limit": 1}), "Ask for fewer"),
        ("read_file", "sparse", json!({"offset": 2, "limit": 1}), "268435456 bytes of it"),
        ("edit_file", "sparse", json!({"old_string": "a", "new_string": "b"}), "failed to edit file"),
        ("list_dir", "sparse", json!({}), "failed to list directory"),
    ] {
        let mut arguments = more.clone();
        arguments["path"] = json!(place.join(name));
        let (failed, text, _) = call(bench, tool, arguments).await;
        assert!(failed && text.contains(says), "{tool} {name} {more}: {text}");
    }
    let (_, _, listed) = call(bench, "list_dir", json!({"path": place})).await;
    let names: Vec<_> =
        listed["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fifo", "loop", "sparse", "\u{fffd}\u{fffd}"]);
}

pub(crate) async fn crowds(bench: &Bench) {
    let place = bench.directory.path().join("files/crowd");
    fs::create_dir(&place).unwrap();
    let fill = |numbers: std::ops::Range<usize>| {
        numbers.for_each(|number| drop(fs::File::create(place.join(format!("{number:06}"))).unwrap()));
    };
    fill(0..10_001);
    let (_, _, listed) = call(bench, "list_dir", json!({"path": place})).await;
    assert_eq!((listed["entries"].as_array().unwrap().len(), &listed["total"]), (10_000, &json!(10_001)));
    assert_eq!(listed["entries"][9999]["name"], "009999");
    fill(10_001..100_001);
    let (failed, _, listed) = call(bench, "list_dir", json!({"path": place})).await;
    assert_eq!((failed, listed["entries"].as_array().unwrap().len(), &listed["total"]), (false, 10_000, &Value::Null));
    assert!(listed["note"].as_str().unwrap().starts_with("There are more than 100000"), "{}", listed["note"]);
    fs::remove_dir_all(&place).unwrap();
}
