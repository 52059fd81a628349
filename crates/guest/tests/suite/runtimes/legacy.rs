//! The older HTTP API: its shapes, and commands without a shell.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::client::{Served, multipart, serve};
use crate::support::{Guest, Outcome, is_alive, pid_in, told_pid, until};

async fn execute(served: &Served, body: Value) -> Outcome<Value> {
    let answer =
        served.legacy("POST /execute", &["Content-Type: application/json"], body.to_string().as_bytes()).await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    Ok(answer.json())
}

pub(crate) async fn is_there(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let answer = served.legacy("GET /", &[], b"").await?;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"status": "ok", "message": "Sandbox Runtime is active."}));
    let unknown = served.legacy("GET /nothing", &[], b"").await?;
    assert_eq!((unknown.status, unknown.json()), (404, json!({"detail": "Not Found"})));
    let wrong = served.legacy("GET /execute", &[], b"").await?;
    assert_eq!((wrong.status, wrong.json()), (405, json!({"detail": "Method Not Allowed"})));
    Ok(())
}

pub(crate) async fn executes_without_a_shell(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let root = served.root.canonicalize()?.display().to_string();
    for (command, stdout, exit_code) in [
        ("echo hello  'two  words' \"a\\\"b\"", "hello two  words a\"b\n".to_owned(), 0),
        ("echo $HOME `id` $(id) * ~ a;b | c > d && e # f", "$HOME `id` $(id) * ~ a;b | c > d && e # f\n".into(), 0),
        ("pwd", format!("{root}\n"), 0),
        ("sh -c 'echo $SANDBOX_NAME; exit 7'", "box\n".into(), 7),
        ("sh -c 'kill -9 $$'", String::new(), -9),
        ("printf '\\377'", "\u{fffd}".into(), 0),
        ("cat", String::new(), 0),
    ] {
        let told = execute(&served, json!({ "command": command })).await?;
        let wanted = json!({"stdout": stdout, "stderr": "", "exit_code": exit_code, "timed_out": false});
        assert_eq!(told, wanted, "{command}");
    }
    assert!(!served.root.join("d").exists(), "a shell saw it");
    let told = execute(&served, json!({"command": "sh -c 'echo x >&2'"})).await?;
    assert_eq!(told["stderr"], "x\n");
    Ok(())
}

pub(crate) async fn tells_what_it_failed_to_execute(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    for (command, why) in [
        ("no-such-program -x", "[Errno 2] No such file or directory: 'no-such-program'"),
        ("echo 'unfinished", "No closing quotation"),
        ("echo \\", "No escaped character"),
        ("", "the command is empty"),
        ("''", "There is no command to run."),
    ] {
        let told = execute(&served, json!({ "command": command })).await?;
        assert_eq!(told["stderr"], format!("Failed to execute command: {why}"), "{command}");
        assert_eq!((&told["exit_code"], &told["stdout"]), (&json!(1), &json!("")));
    }
    for wrong in ["", "{}", "[]", "{\"command\":7}", "{\"command\":\"x\",\"timeout_seconds\":\"x\"}"] {
        let answer = served.legacy("POST /execute", &[], wrong.as_bytes()).await?;
        assert_eq!((answer.status, answer.json()["detail"].is_array()), (422, true), "{wrong}");
    }
    let large = json!({"command": "x".repeat(5 << 20)}).to_string();
    assert_eq!(served.legacy("POST /execute", &[], large.as_bytes()).await?.status, 413);
    let told = execute(&served, json!({"command": "head -c 16777217 /dev/zero"})).await?;
    assert_eq!(told["exit_code"], 1);
    assert!(told["stderr"].as_str().is_some_and(|text| text.contains("16 MiB")), "{}", told["stderr"]);
    Ok(())
}

pub(crate) async fn ends_what_takes_too_long(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let script = "sh -c 'setsid sh -c \"echo \\$\\$ > pid; sleep 1000\" & echo begun; wait'";
    let mut said = Value::Null;
    // The second is for a busy machine, where too little was begun in the first.
    for seconds in [3, 20] {
        let _ = fs::remove_file(served.root.join("pid"));
        let begun = Instant::now();
        let told = execute(&served, json!({"command": script, "timeout_seconds": seconds})).await?;
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!((&told["timed_out"], &told["exit_code"]), (&json!(true), &json!(124)));
        said = told["stdout"].clone();
        let pid = told_pid(&served.root.join("pid"));
        if let Some(pid) = pid {
            until("the tree is dead", || !is_alive(pid)).await?;
        }
        if said == "begun\n" && pid.is_some() {
            break;
        }
    }
    assert_eq!(said, "begun\n");
    // What means nothing means the limit.
    for nothing in [json!(0), json!(-5), Value::Null, json!(1e300)] {
        let told = execute(&served, json!({"command": "true", "timeout_seconds": nothing})).await?;
        assert_eq!(told["exit_code"], 0, "{nothing}");
    }

    // Whoever goes away ends it too.
    fs::remove_file(served.root.join("pid"))?;
    let body = json!({ "command": script }).to_string();
    let call = served.legacy("POST /execute", &[], body.as_bytes());
    let file = served.root.join("pid");
    let pid = tokio::select! {
        ended = call => return Err(format!("it ended by itself: {ended:?}").into()),
        pid = pid_in(&file) => pid?,
    };
    until("the tree is dead", || !is_alive(pid)).await
}

pub(crate) async fn moves_files(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let upload = async |name: &str, data: &[u8]| {
        let (kind, body) = multipart("file", Some(name), data);
        served.legacy("POST /upload", &[&kind], &body).await
    };
    for (name, place) in [("f", "f"), ("a/b/c", "a/b/c"), ("/abs", "abs"), ("x/../y", "y")] {
        let answer = upload(name, b"data\xff").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json(), json!({"message": format!("File '{name}' uploaded successfully.")}));
        assert_eq!(fs::read(served.root.join(place))?, b"data\xff");
    }
    for name in ["../out", "a/../../out"] {
        let answer = upload(name, b"x").await?;
        assert_eq!((answer.status, answer.json()), (403, json!({"message": "Access denied"})), "{name}");
    }
    let failed = upload("a", b"x").await?;
    assert_eq!(failed.status, 500);
    assert!(failed.json()["message"].as_str().is_some_and(|text| text.starts_with("File upload failed: ")));
    let (kind, body) = multipart("other", Some("f"), b"x");
    assert_eq!(served.legacy("POST /upload", &[&kind], &body).await?.status, 422);
    let (kind, body) = multipart("file", None, b"x");
    assert_eq!(served.legacy("POST /upload", &[&kind], &body).await?.status, 422);
    assert_eq!(served.legacy("POST /upload", &[], b"x").await?.status, 422);

    let get = async |target: &str| served.legacy(&format!("GET {target}"), &[], b"").await;
    let file = get("/download/a%2Fb%2Fc").await?;
    assert_eq!((file.status, file.body.as_slice()), (200, &b"data\xff"[..]));
    assert_eq!((file.header("content-type"), file.header("content-length")), ("application/octet-stream", "5"));
    assert_eq!(get("/download/a/b/c").await?.status, 200);
    for missing in ["/download/nothing", "/download/a", "/download/f%2Fbelow", "/download/"] {
        let answer = get(missing).await?;
        assert_eq!((answer.status, answer.json()), (404, json!({"message": "File not found"})), "{missing}");
    }
    let listed = get("/list/a").await?;
    assert_eq!(listed.status, 200);
    let listed = listed.json();
    let entry = &listed[0];
    assert_eq!((&entry["name"], &entry["type"]), (&json!("b"), &json!("directory")));
    assert!(entry["mod_time"].is_f64() && entry["size"].is_u64(), "{entry}");
    let whole = get("/list/").await?.json();
    let names: Vec<_> = whole.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["a", "abs", "f", "y"]);
    for missing in ["/list/nothing", "/list/f"] {
        let answer = get(missing).await?;
        assert_eq!((answer.status, answer.json()), (404, json!({"message": "Path is not a directory"})), "{missing}");
    }
    for (path, shown, exists) in [("a%2Fb", "a/b", true), ("f", "f", true), ("nothing", "nothing", false)] {
        let answer = get(&format!("/exists/{path}")).await?;
        assert_eq!((answer.status, answer.json()), (200, json!({"path": shown, "exists": exists})));
    }
    for path in ["/download/..%2Fx", "/list/..", "/exists/%2E%2E%2Fx", "/download/a%2F..%2F..%2Fx"] {
        let answer = get(path).await?;
        assert_eq!((answer.status, answer.json()), (403, json!({"message": "Access denied"})), "{path}");
    }
    Ok(())
}
