//! A server in a real sandbox, opened as a browser opens it: the printed link, its code, the cookie, the page.

use reqwest::{Client, Response, StatusCode, Url, header};

use crate::{
    browser::Browser,
    support::{Outcome, Server, done},
};

const APP: &str = include_str!("preview/app.py");

/// What answers at a preview's host, asked with the server's own address: names below localhost are the browser's to resolve.
struct Visitor {
    client: Client,
    base: String,
    host: String,
}

impl Visitor {
    async fn get(&self, path: &str, cookie: &str) -> Outcome<Response> {
        let request = self.client.get(format!("{}{path}", self.base)).header(header::HOST, &self.host);
        Ok(request.header(header::COOKIE, cookie).send().await?)
    }

    async fn enter(&self, code: &str) -> Outcome<Response> {
        let request = self.client.post(format!("{}/.sandbar/enter", self.base)).header(header::HOST, &self.host);
        let request = request.header(header::ORIGIN, format!("http://{}", self.host));
        Ok(request.json(&serde_json::json!({ "code": code })).send().await?)
    }
}

#[tokio::test]
async fn a_link_opens_a_server_inside() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "web"]))?;
    let base = server.base()?;
    let printed = done(&mut server.command(&["preview", "web", "8080"]))?;
    let url: Url = printed.trim().parse()?;
    let code = url.fragment().and_then(|fragment| fragment.strip_prefix("code=")).ok_or("no code")?.to_owned();
    let port = url.port().ok_or("no port")?;
    let host = format!("{}:{port}", url.host_str().ok_or("no host")?);
    assert!(host.starts_with("sbx-") && host.ends_with(&format!("-8080.localhost:{port}")), "{host}");
    let visitor = Visitor { client: Client::builder().no_proxy().build()?, base: base.clone(), host };

    assert_eq!(visitor.get("/", "").await?.status(), StatusCode::UNAUTHORIZED);
    let entered = visitor.enter(&code).await?;
    assert_eq!(entered.status(), StatusCode::NO_CONTENT);
    let cookie = entered.headers()[header::SET_COOKIE].to_str()?.split(';').next().ok_or("no cookie")?.to_owned();
    assert_eq!(visitor.enter(&code).await?.status(), StatusCode::UNAUTHORIZED);
    let early = visitor.get("/", &cookie).await?;
    assert_eq!(early.status(), StatusCode::BAD_GATEWAY);
    assert!(early.text().await?.contains("Nothing listens on port 8080 yet."));

    let serve = "echo from inside > index.html; exec python3 -m http.server 8080";
    done(&mut server.command(&["exec", "-d", "web", "--", "sh", "-c", serve]))?;
    crate::support::until("it is shown", async || Ok(visitor.get("/", &cookie).await?.status() == StatusCode::OK))
        .await?;
    assert_eq!(visitor.get("/", &cookie).await?.text().await?, "from inside\n");

    // The sandbox's own way out is shown to nobody.
    let gate = server.command(&["preview", "web", "7228"]).output()?;
    assert!(!gate.status.success() && crate::support::text(&gate.stderr).contains("way out"), "{gate:?}");

    // Another port is another place, with a cookie of its own.
    let other = done(&mut server.command(&["--json", "preview", "web", "8081"]))?;
    let other: serde_json::Value = serde_json::from_str(&other)?;
    let url: Url = other["url"].as_str().ok_or("no url")?.parse()?;
    let code = url.fragment().and_then(|fragment| fragment.strip_prefix("code=")).ok_or("no code")?;
    let host = format!("{}:{port}", url.host_str().ok_or("no host")?);
    let other = Visitor { client: visitor.client.clone(), base, host };
    assert_eq!(other.get("/", &cookie).await?.status(), StatusCode::UNAUTHORIZED);
    let entered = other.enter(code).await?;
    let own = entered.headers()[header::SET_COOKIE].to_str()?.split(';').next().ok_or("no cookie")?.to_owned();
    assert_eq!(other.get("/", &own).await?.status(), StatusCode::BAD_GATEWAY, "nothing listens there");
    done(&mut server.command(&["rm", "web"]))?;
    assert_eq!(visitor.get("/", &cookie).await?.status(), StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn a_browser_opens_the_link_and_its_page_is_confined() -> Outcome {
    let server = Server::start()?;
    let base = server.base()?;
    done(&mut server.command(&["create", "--name", "web"]))?;
    done(&mut server.command(&["exec", "-d", "web", "--", "python3", "-c", APP, &base]))?;
    let connect = "import socket; socket.create_connection(('127.0.0.1', 8080))";
    let listens = ["exec", "web", "--", "python3", "-c", connect];
    crate::support::until("it listens", async || Ok(server.command(&listens).output()?.status.success())).await?;

    let link = done(&mut server.command(&["preview", "web", "8080"]))?;
    let Some(_browser) = Browser::open(link.trim(), &["--remote-debugging-port=0"])? else {
        sandbar_test_harness::missing("a_browser_opens_the_link_and_its_page_is_confined", "chromium");
        return Ok(());
    };
    let read = ["exec", "web", "--", "cat", "told"];
    crate::support::until("it has told", async || Ok(server.command(&read).output()?.status.success())).await?;
    let told = done(&mut server.command(&read))?;
    // What the page fetches from its own server arrives in the same way.
    let want = "script sees: app=1\nserver sees: app=1\nthe API: refused\nthe socket: echo hello\naddress: /";
    assert_eq!(told, want);

    let dump = ["--virtual-time-budget=20000", "--dump-dom"];
    let again = Browser::open(link.trim(), &dump)?.ok_or("no browser")?.shown()?;
    assert!(again.contains("The link's code is wrong, used or expired."), "{again}");
    Ok(())
}
