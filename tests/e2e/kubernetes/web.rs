//! Servers in pods, reached from outside through the guest: ports, previews, and the runtimes of agent-sandbox.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use reqwest::{Client, StatusCode, Url, header};
use serde_json::{Value, json};

use crate::{kubernetes::place::Place, support::Outcome, support::until};

/// `sandbar forward` of one port, ended when dropped.
struct Forward {
    process: Child,
    address: String,
}

impl Forward {
    fn to(place: &Place, sandbox: &str, port: u16) -> Outcome<Self> {
        let mut command = place.server.command(&["--json", "forward", sandbox, &format!("{port}:0")]);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
        let mut forward = Self { process, address: String::new() };
        let told: Value = serde_json::from_str(&line)?;
        told["local"].as_str().ok_or("no address")?.clone_into(&mut forward.address);
        Ok(forward)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _waited = self.process.wait();
    }
}

#[tokio::test]
async fn servers_in_a_pod_are_reached_through_the_guest() -> Outcome {
    let name = "servers_in_a_pod_are_reached_through_the_guest";
    let served = ("served", "[runtimes.sandboxd]\n[runtimes.legacy]\n");
    let Some(place) = Place::open(name, &[served])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "web", "--template", "served"])?;
    let serve = "echo from a pod > index.html; exec python3 -m http.server 8000 --bind 127.0.0.1";
    place.sandbar(&["exec", "-d", "web", "--", "sh", "-c", serve])?;
    let client = Client::builder().no_proxy().build()?;

    let forward = Forward::to(&place, "web", 8000)?;
    let page = format!("http://{}/", forward.address);
    until("it answers", async || Ok(client.get(&page).send().await.is_ok_and(|answer| answer.status().is_success())))
        .await?;
    assert_eq!(client.get(&page).send().await?.text().await?, "from a pod\n");

    let url: Url = place.sandbar(&["preview", "web", "8000"])?.trim().parse()?;
    let code = url.fragment().and_then(|fragment| fragment.strip_prefix("code=")).ok_or("no code")?;
    let host = format!("{}:{}", url.host_str().ok_or("no host")?, url.port().ok_or("no port")?);
    let base = place.server.base()?;
    let entered = client.post(format!("{base}/.sandbar/enter")).header(header::HOST, &host);
    let entered = entered.header(header::ORIGIN, format!("http://{host}")).json(&json!({ "code": code }));
    let entered = entered.send().await?;
    assert_eq!(entered.status(), StatusCode::NO_CONTENT);
    let cookie = entered.headers()[header::SET_COOKIE].to_str()?.split(';').next().ok_or("no cookie")?.to_owned();
    let shown = client.get(format!("{base}/")).header(header::HOST, &host).header(header::COOKIE, cookie);
    assert_eq!(shown.send().await?.text().await?, "from a pod\n");

    let token = place.json(&["token", "router", "web", "--ttl", "1h"])?;
    let token = token["token"].as_str().ok_or("no token")?;
    let routed = |path: &str, port: &str| {
        let request = client.post(format!("{base}/router{path}")).bearer_auth(token);
        request.header("X-Sandbox-ID", "web").header("X-Sandbox-Port", port)
    };
    let ran = routed("/execute", "8888").json(&json!({ "command": "sh -c 'echo routed; id -u'" })).send().await?;
    let ran: Value = ran.json().await?;
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("routed\n1000\n"), &json!(0)), "{ran}");
    let rest = Forward::to(&place, "web", 8080)?;
    let file = format!("http://{}/v1/files/d/f", rest.address);
    assert!(client.put(&file).body("by sandboxd").send().await?.status().is_success());
    assert_eq!(place.inside("web", "cat /workspace/d/f")?, "by sandboxd");
    place.sandbar(&["rm", "web"])?;
    place.expect_nothing_left()
}
