//! sandboxd's REST API: its statuses, shapes and texts.

use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::client::{Answer, Served, multipart, serve};
use crate::support::{Guest, Outcome, until};

const ESCAPES: &str = "path traversal outside sandbox root is forbidden";
const MISSING: &str = "path does not exist within the sandbox";

fn told(answer: &Answer) -> (u16, String, String) {
    let json = answer.json();
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("code"), text("message"))
}

fn refusal(status: u16, code: &str, message: &str) -> (u16, String, String) {
    (status, code.into(), message.into())
}

pub(crate) async fn reads_files(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::create_dir_all(served.root.join("a b"))?;
    fs::write(served.root.join("a b/c"), b"0123456789\xff\0")?;
    for path in ["a%20b/c", "a%20b%2Fc", "%2Fa%20b%2fc", "./a%20b/%2E/c", "x/%2E%2E/a%20b/c", "a%20b/../a%20b/c"] {
        let answer = served.rest(&format!("GET /v1/files/{path}"), &[], b"").await?;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"0123456789\xff\0"[..]), "{path}");
        assert_eq!(answer.header("content-type"), "application/octet-stream");
        assert_eq!((answer.header("content-length"), answer.header("accept-ranges")), ("12", "bytes"));
    }
    let head = served.rest("HEAD /v1/files/a%20b/c", &[], b"").await?;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "12", 0));
    assert_eq!(served.rest("HEAD /v1/files/nothing", &[], b"").await?.status, 404);
    assert_eq!(served.rest("HEAD /v1/files/a%20b", &[], b"").await?.status, 200);
    fs::write(served.root.join("empty"), "")?;
    let empty = served.rest("GET /v1/files/empty", &[], b"").await?;
    assert_eq!((empty.status, empty.header("content-length"), empty.body.len()), (200, "0", 0));
    Ok(())
}

pub(crate) async fn reads_ranges(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::write(served.root.join("f"), b"0123456789")?;
    let range = async |range: &str| served.rest("GET /v1/files/f", &[&format!("Range: {range}")], b"").await;
    for (asked, body, part) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=7-99", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-99", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = range(asked).await?;
        assert_eq!((answer.status, answer.body.as_slice()), (206, body.as_bytes()), "{asked}");
        assert_eq!(answer.header("content-range"), part);
        assert_eq!(answer.header("content-length"), body.len().to_string());
    }
    for asked in ["bytes=10-", "bytes=99-100", "bytes=-0"] {
        let answer = range(asked).await?;
        assert_eq!((answer.status, answer.header("content-range")), (416, "bytes */10"), "{asked}");
    }
    for asked in ["bytes=0-1,3-4", "lines=1-2", "bytes=4-2", "nonsense"] {
        assert_eq!(range(asked).await?.status, 200, "{asked}");
    }
    // Far into a file that is larger than any memory.
    let mut huge = fs::File::create(served.root.join("huge"))?;
    huge.set_len(1 << 40)?;
    huge.seek(SeekFrom::Start((1 << 40) - 3))?;
    huge.write_all(b"end")?;
    let answer = served.rest("GET /v1/files/huge", &["Range: bytes=1099511627770-1099511627775"], b"").await?;
    assert_eq!((answer.status, answer.body.as_slice()), (206, &b"\0\0\0end"[..]));
    let head = served.rest("HEAD /v1/files/huge", &[], b"").await?;
    assert_eq!(head.header("content-length"), (1_u64 << 40).to_string());
    Ok(())
}

pub(crate) async fn lists_directories(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::create_dir_all(served.root.join("d/sub"))?;
    fs::write(served.root.join("d/b\"é"), "12345")?;
    fs::set_permissions(served.root.join("d/b\"é"), fs::Permissions::from_mode(0o600))?;
    fs::File::open(served.root.join("d/b\"é"))?
        .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(951_782_400))?;
    fs::write(served.root.join("d/a"), "")?;
    std::os::unix::fs::symlink("a", served.root.join("d/link"))?;
    std::os::unix::fs::symlink("sub", served.root.join("d/into"))?;
    std::os::unix::fs::symlink("nothing", served.root.join("d/broken"))?;
    std::os::unix::fs::symlink("/etc/passwd", served.root.join("d/out"))?;
    std::os::unix::fs::symlink("../../..", served.root.join("d/up"))?;
    let answer = served.rest("GET /v1/files/d", &[], b"").await?;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let listed = answer.json();
    assert_eq!(listed["path"], "/d");
    let names: Vec<_> = listed["entries"].as_array().into_iter().flatten().map(|entry| entry["name"].clone()).collect();
    assert_eq!(names, ["a", "b\"é", "into", "link", "sub"], "links that are broken or lead out are not there");
    let wanted =
        json!({"name": "b\"é", "size": 5, "type": "file", "modified_at": "2000-02-29T00:00:00Z", "mode": "0600"});
    assert_eq!(listed["entries"][1], wanted);
    let kind = |index: usize| listed["entries"][index]["type"].clone();
    assert_eq!((kind(2), kind(3), kind(4)), (json!("directory"), json!("file"), json!("directory")));
    for root in ["/v1/files", "/v1/files/", "/v1/files/%2F", "/v1/files/d/%2E%2E"] {
        let answer = served.rest(&format!("GET {root}"), &[], b"").await?;
        assert_eq!((answer.status, &answer.json()["path"]), (200, &json!("/")), "{root}");
        assert_eq!(answer.json()["entries"][0]["name"], "d");
    }
    fs::create_dir(served.root.join("void"))?;
    assert_eq!(served.rest("GET /v1/files/void", &[], b"").await?.json(), json!({"path": "/void", "entries": []}));
    // Many, in pieces.
    fs::create_dir(served.root.join("many"))?;
    for number in 0..3000 {
        fs::write(served.root.join(format!("many/{number:05}")), "")?;
    }
    let many = served.rest("GET /v1/files/many", &[], b"").await?.json();
    let many: Vec<_> =
        many["entries"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(many.len(), 3000);
    assert!(many.is_sorted());
    Ok(())
}

pub(crate) async fn replaces_files(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let mode = |name: &str| -> Outcome<u32> { Ok(fs::metadata(served.root.join(name))?.permissions().mode() & 0o7777) };
    let put = async |target: &str, head: &[&str], body: &[u8]| -> Outcome<u16> {
        Ok(served.rest(&format!("PUT /v1/files/{target}"), head, body).await?.status)
    };
    assert_eq!(put("new/deep/f", &[], b"raw\xff").await?, 204);
    assert_eq!(fs::read(served.root.join("new/deep/f"))?, b"raw\xff");
    assert_eq!((mode("new")?, mode("new/deep")?, mode("new/deep/f")?), (0o755, 0o755, 0o644));
    assert_eq!(put("new%2Fdeep%2Ff?mode=0700", &[], b"again").await?, 204);
    assert_eq!((fs::read(served.root.join("new/deep/f"))?, mode("new/deep/f")?), (b"again".to_vec(), 0o700));
    let (kind, body) = multipart("file", Some("ignored"), b"in a part");
    assert_eq!(put("part", &[&kind], &body).await?, 204);
    assert_eq!(fs::read(served.root.join("part"))?, b"in a part");
    let chunked = b"4\r\nchun\r\n3\r\nked\r\n0\r\n\r\n";
    assert_eq!(put("chunked", &["Transfer-Encoding: chunked"], chunked).await?, 204);
    assert_eq!(fs::read(served.root.join("chunked"))?, b"chunked");
    assert_eq!(put("empty", &[], b"").await?, 204);
    assert_eq!(fs::read(served.root.join("empty"))?, b"");
    let large = vec![7; 9 << 20];
    assert_eq!(put("large", &[], &large).await?, 204);
    assert!(fs::read(served.root.join("large"))? == large);

    for wrong in ["f?mode=644", "f?mode=0888", "f?mode=", "f?mode=01777", "new", "new/deep", "", "a%00b", "a%zz"] {
        let answer = served.rest(&format!("PUT /v1/files/{wrong}"), &[], b"x").await?;
        assert_eq!((answer.status, told(&answer).1), (400, "INVALID_ARGUMENT".into()), "{wrong}");
    }
    let (kind, body) = multipart("other", Some("f"), b"x");
    assert_eq!(put("f", &[&kind], &body).await?, 400);
    assert_eq!(put("f", &["Content-Type: multipart/form-data"], &body).await?, 400);
    assert_eq!(put("f", &["Content-Type: multipart/form-data; boundary=B"], b"--B\r\nnonsense").await?, 400);
    assert!(!served.root.join("f").exists());
    // A name that is a file on the way.
    assert_eq!(put("part/below", &[], b"x").await?, 400);
    assert_eq!(put(&"n".repeat(300), &[], b"x").await?, 400);
    Ok(())
}

pub(crate) async fn a_broken_upload_changes_nothing(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::write(served.root.join("f"), "before")?;
    let mut stream = TcpStream::connect(("127.0.0.1", u16::try_from(served.rest_port())?)).await?;
    stream.write_all(b"PUT /v1/files/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nhalf of it").await?;
    let drafts = || {
        let entries = fs::read_dir(&served.root).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".sandbar-")).count()
    };
    until("a draft", || drafts() == 1).await?;
    drop(stream);
    until("no draft", || drafts() == 0).await?;
    assert_eq!(fs::read_to_string(served.root.join("f"))?, "before");
    until("no worker is left", || served.guest.children().is_empty()).await
}

pub(crate) async fn keeps_nothing_of_an_endless_head(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let before = served.guest.memory("RssAnon:")?;
    let kind = "Content-Type: multipart/form-data; boundary=B";
    let endless = [b"--B\r\nContent-Disposition: ".to_vec(), vec![b'x'; 64 << 20]].concat();
    for line in ["PUT /v1/files/f", "POST /upload"] {
        let answer = match line {
            "POST /upload" => served.legacy(line, &[kind], &endless).await,
            _ => served.rest(line, &[kind], &endless).await,
        };
        // Whoever still writes may find the connection closed before the answer is read.
        if let Ok(answer) = answer {
            assert!([400, 422].contains(&answer.status), "{answer:?}");
            assert!(String::from_utf8_lossy(&answer.body).contains("within 1 MiB"), "{answer:?}");
        }
    }
    let most = served.guest.memory("VmHWM:")? - served.guest.memory("RssFile:")?;
    assert!(most < before + 16 * 1024, "{most} KiB after {before}");
    // Other parts may come first, and what follows the head may be as long as it likes.
    let (kind, mut body) = multipart("file", None, &vec![7; 5 << 20]);
    body.splice(0..0, *b"--B\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nsmall\r\n");
    assert_eq!(served.rest("PUT /v1/files/f", &[&kind], &body).await?.status, 204);
    assert_eq!(fs::metadata(served.root.join("f"))?.len(), 5 << 20);
    Ok(())
}

pub(crate) async fn removes(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let delete = async |target: &str| served.rest(&format!("DELETE /v1/files/{target}"), &[], b"").await;
    fs::create_dir_all(served.root.join("d/e"))?;
    fs::create_dir_all(served.root.join("void"))?;
    fs::write(served.root.join("d/e/f"), "x")?;
    fs::write(served.root.join("f"), "x")?;
    fs::write(served.guest.path("kept"), "x")?;
    std::os::unix::fs::symlink("../../kept", served.root.join("d/out"))?;
    std::os::unix::fs::symlink("f", served.root.join("link"))?;
    assert_eq!(delete("link").await?.status, 204);
    assert!(served.root.join("f").exists(), "the link went, not the file");
    assert_eq!(delete("f").await?.status, 204);
    assert_eq!(told(&delete("f").await?), refusal(404, "NOT_FOUND", MISSING));
    assert_eq!(told(&delete("f/below").await?), refusal(404, "NOT_FOUND", MISSING));
    assert_eq!(delete("void").await?.status, 204);
    let full = delete("d").await?;
    assert_eq!((full.status, told(&full).1), (409, "CONFLICT".into()));
    for wrong in ["d?recursive=perhaps", "d?recursive="] {
        assert_eq!(delete(wrong).await?.status, 400, "{wrong}");
    }
    assert_eq!(delete("d?recursive=false").await?.status, 409);
    assert_eq!(told(&delete("d/out").await?), refusal(403, "PERMISSION_DENIED", ESCAPES));
    assert_eq!(delete("d?recursive=true").await?.status, 204);
    assert!(!served.root.join("d").exists() && served.guest.path("kept").exists());
    fs::create_dir_all(served.root.join("x/y"))?;
    fs::write(served.root.join("z"), "")?;
    for root in ["", "%2E", "x/%2E%2E"] {
        assert_eq!(told(&delete(root).await?).1, "CONFLICT", "{root}");
    }
    assert_eq!(delete("?recursive=1").await?.status, 204);
    assert_eq!(fs::read_dir(&served.root)?.count(), 0, "its contents go, the root stays");
    Ok(())
}

pub(crate) async fn refuses_by_the_table(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::write(served.root.join("f"), "x")?;
    for path in ["%2E%2E", "%2E%2E/x", "a/../../x", "..%2F..%2Fetc%2Fpasswd", "%2E%2E%2F"] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let answer = served.rest(&format!("{method} /v1/files/{path}"), &[], b"").await?;
            assert_eq!(answer.status, 403, "{method} {path}");
            if method != "HEAD" {
                assert_eq!(told(&answer), refusal(403, "PERMISSION_DENIED", ESCAPES), "{method} {path}");
            }
        }
    }
    for path in ["nothing", "f/below", "no/such/place"] {
        let answer = served.rest(&format!("GET /v1/files/{path}"), &[], b"").await?;
        assert_eq!(told(&answer), refusal(404, "NOT_FOUND", MISSING), "{path}");
    }
    for path in ["a%00b", "%", "%f"] {
        let answer = served.rest(&format!("GET /v1/files/{path}"), &[], b"").await?;
        assert_eq!(told(&answer).1, "INVALID_ARGUMENT", "{path}");
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        served.root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )?;
    assert_eq!(served.rest("GET /v1/files/pipe", &[], b"").await?.status, 400, "nobody waits for a writer");
    fs::create_dir(served.root.join("shut"))?;
    fs::write(served.root.join("shut/f"), "x")?;
    fs::set_permissions(served.root.join("shut"), fs::Permissions::from_mode(0o000))?;
    let answer = served.rest("GET /v1/files/shut/f", &[], b"").await?;
    assert_eq!((answer.status, told(&answer).1), (403, "PERMISSION_DENIED".into()));
    fs::set_permissions(served.root.join("shut"), fs::Permissions::from_mode(0o755))?;
    let unknown = served.rest("GET /v1/nothing", &[], b"").await?;
    assert_eq!((unknown.status, told(&unknown).1), (404, "NOT_FOUND".into()));
    assert_eq!(served.rest("GET /v1/filesystem", &[], b"").await?.status, 404);
    let post = served.rest("POST /v1/files/f", &[], b"").await?;
    assert_eq!((post.status, post.header("allow")), (405, "GET, HEAD, PUT, DELETE"));
    Ok(())
}

pub(crate) async fn tells_of_itself(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let health = served.rest("GET /v1/health", &[], b"").await?;
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    assert!(health.json()["uptime_seconds"].is_u64());
    let metadata = served.rest("GET /v1/metadata", &[], b"").await?;
    assert_eq!(metadata.json(), json!({"env": {"SANDBOX_NAME": "box"}}), "what sounds secret is withheld");
    assert_eq!(served.rest("POST /v1/health", &[], b"").await?.status, 405);
    Ok(())
}

pub(crate) async fn asks_for_its_token(guest: Guest) -> Outcome {
    let token = "a-token-of-24-characters";
    let served = serve(guest, token).await?;
    fs::write(served.root.join("f"), "x")?;
    let right = format!("Authorization: Bearer {token}");
    let lines = ["GET /v1/files/f", "PUT /v1/files/g", "DELETE /v1/files/f", "HEAD /v1/files/f", "GET /v1/metadata"];
    for line in lines {
        for wrong in [&[][..], &["Authorization: Bearer wrong"], &["Authorization: Basic eDp5"]] {
            let answer = served.rest(line, wrong, b"").await?;
            assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{line} {wrong:?}");
        }
    }
    assert!(served.root.join("f").exists() && !served.root.join("g").exists());
    assert_eq!(served.rest("GET /v1/health", &[], b"").await?.status, 200);
    assert_eq!(served.rest("GET /v1/files/f", &[&right], b"").await?.body, b"x");
    Ok(())
}

pub(crate) async fn is_not_used_up_by_idlers(guest: Guest) -> Outcome {
    let served: Served = serve(guest, "").await?;
    let port = u16::try_from(served.rest_port())?;
    let mut idle = vec![];
    for _ in 0..100 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).await?);
    }
    // All places are taken by connections that say nothing, until they are sent away.
    let health = tokio::time::timeout(Duration::from_secs(300), served.rest("GET /v1/health", &[], b"")).await??;
    assert_eq!(health.status, 200);
    let mut first = idle.swap_remove(0);
    let mut rest = vec![];
    first.read_to_end(&mut rest).await?;
    Ok(())
}
