//! People sign in with a browser, which then opens whatever else they look at: what it takes along, and where to.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    browser::Browser,
    forward::Forward,
    support::{Outcome, Server, done, program, until},
};

/// Answers everything and writes down the cookies it was sent, by host and path.
const INSIDE: &str = r#"
import http.server, sys
class Seen(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("seen", "a") as seen:
            name = self.headers["Host"].split(":")[0]
            seen.write(f"{name} {self.path} {self.headers.get('Cookie', 'nothing')}\n")
        there = f"http://localhost:{self.headers['Host'].split(':')[1]}/there"
        script = f"location = '{there}'" if self.path == "/here" else ""
        body = f"<!doctype html><script>{script}</script>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Seen).serve_forever()
"#;

/// A server on another port of this machine, which sets a cookie as Sandbar once did. Its page opens the link in another
/// tab, waits until that has signed the browser in, and goes on to what a sandbox serves.
async fn other_server(listener: TcpListener, page: String, go: Arc<Mutex<bool>>) -> Outcome {
    loop {
        let (stream, _) = listener.accept().await?;
        let (page, go) = (page.clone(), go.clone());
        tokio::spawn(async move { answer(stream, &page, &go).await.ok() });
    }
}

async fn answer(mut stream: TcpStream, page: &str, go: &Mutex<bool>) -> Outcome {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    let body = match first.split_whitespace().nth(1) {
        Some("/go") if *go.lock().unwrap_or_else(PoisonError::into_inner) => "go",
        Some("/go") => "wait",
        _ => page,
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\
         Set-Cookie: old=1; Path=/; Max-Age=600; HttpOnly; SameSite=Strict\r\n\r\n",
        body.len()
    );
    write.write_all(head.as_bytes()).await?;
    Ok(write.write_all(body.as_bytes()).await?)
}

#[tokio::test]
async fn a_browser_that_is_signed_in_gives_nothing_to_servers_in_sandboxes() -> Outcome {
    let name = "a_browser_that_is_signed_in_gives_nothing_to_servers_in_sandboxes";
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "web"]))?;
    done(&mut server.command(&["exec", "-d", "web", "--", "python3", "-c", INSIDE]))?;
    let connect = "import socket; socket.create_connection(('127.0.0.1', 8080))";
    let listens = ["exec", "web", "--", "python3", "-c", connect];
    until("it listens", async || Ok(server.command(&listens).output()?.status.success())).await?;
    let forward = Forward::start(&server, &["web", "8080:0"])?;

    let link = done(&mut server.command(&["open"]))?;
    let page = format!(
        "<!doctype html><script>
           open('{}');
           const ask = async () => {{
             if (await (await fetch('/go')).text() === 'go') location = 'http://127.0.0.1:{}/here';
             else setTimeout(ask, 50);
           }};
           ask();
         </script>",
        link.trim(),
        forward.port(0)?
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let other = format!("http://{}/", listener.local_addr()?);
    let go = Arc::new(Mutex::new(false));
    tokio::spawn(other_server(listener, page, go.clone()));
    let Some(_browser) = Browser::open(&other, &["--remote-debugging-port=0", "--disable-popup-blocking"])? else {
        sandbar_test_harness::missing(name, "chromium");
        return Ok(());
    };

    // The page that the link leads to shows what only those who are signed in may see.
    let client = server.client()?;
    until("it is signed in", async || Ok(client.tokens().await?.iter().any(|token| token.name == "browser sign-in")))
        .await?;
    let counted = "sandbar_http_requests_total{route=\"/v1/templates\",method=\"GET\",status=\"2xx\"}";
    until("its cookie lets it in", async || Ok(client.metrics().await?.contains(counted))).await?;
    *go.lock().unwrap_or_else(PoisonError::into_inner) = true;

    let read = ["exec", "web", "--", "cat", "seen"];
    let mut seen = String::new();
    until("it has seen both names", async || {
        let output = server.command(&read).output()?;
        seen = crate::support::text(&output.stdout);
        Ok(seen.contains("localhost /there "))
    })
    .await?;
    // The control: a cookie of another port goes where it went.
    assert!(seen.contains("127.0.0.1 /here old=1\n"), "{seen}");
    assert!(seen.contains("localhost /there nothing\n"), "{seen}");
    assert!(!seen.contains("sandbar"), "{seen}");
    Ok(())
}

/// Who may read its log is not its owner.
#[tokio::test]
async fn a_server_in_a_pod_prints_no_link_and_its_owner_gets_one() -> Outcome {
    let place = tempfile::tempdir()?;
    let in_pod = place.path().join("in-pod");
    let script =
        format!("#!/bin/sh\nexport KUBERNETES_SERVICE_HOST=10.96.0.1\nexec '{}' \"$@\"\n", program().display());
    fs::write(&in_pod, script)?;
    fs::set_permissions(&in_pod, fs::Permissions::from_mode(0o755))?;
    let server = Server::start_furnished(in_pod, |_| Ok(()))?;
    let told = server.printed.join("\n") + &server.log_text();
    assert!(!told.contains("#code=") && told.contains("`sandbar open`"), "{told}");

    let (url, code) = server.sign_in()?;
    let host = url.strip_prefix("http://").ok_or("not plain")?;
    let login = reqwest::Client::builder().no_proxy().build()?.post(format!("{}/v1/login", server.base()?));
    let login = login.header("host", host).header("origin", &url).json(&serde_json::json!({ "code": code }));
    assert_eq!(login.send().await?.status(), reqwest::StatusCode::NO_CONTENT);
    let elsewhere = done(&mut server.command(&["--json", "open", "--at", "https://box.example/"]))?;
    let elsewhere: sandbar_api::SignInLink = serde_json::from_str(&elsewhere)?;
    assert!(elsewhere.url.starts_with("https://box.example/#code="), "{}", elsewhere.url);
    assert!(!server.log_text().contains("#code="), "{}", server.log_text());
    Ok(())
}
