//! Pages and names around a preview: whose cookie opens what, which page may ask, and what a name stands for. Every control
//! is the same request from the preview's own page.

use sandbar_api::Role;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    room::{ONE, RUNTIMES, refused},
    stage::{Stage, Target, token},
    support::Outcome,
    web::{JSON, ask, bearer, host, sign_in_host, signed_in},
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| {
        Attack::act(Class::Web, name, act, Control::Act("from its own page", control)).on(ONE).with(RUNTIMES)
    };
    vec![
        doing("preview_cookie_elsewhere", act!(cookie_elsewhere), act!(own)),
        doing("cookie_of_the_api_at_a_preview", act!(api_cookie), act!(own)),
        doing("forged_preview_cookies", act!(forged), act!(own)),
        doing("preview_code_elsewhere_and_twice", act!(code), act!(own)),
        doing("pages_of_other_sites_at_a_preview", act!(cross_site), act!(own)),
        doing("websocket_to_a_preview_from_a_foreign_page", act!(sockets), act!(own_socket)),
        doing("names_that_look_like_a_preview", act!(names), act!(own)),
        doing("routes_of_the_api_at_a_preview", act!(routes), act!(api_itself)),
    ]
}

/// A link that was asked for.
struct Link {
    host: String,
    code: String,
}

impl Link {
    async fn new(stage: &Stage, sandbox: &str, port: u16) -> Outcome<Self> {
        let url = stage.client.preview(sandbox, port).await?.url;
        let (place, code) = url.trim_start_matches("http://").split_once("/.sandbar/enter#code=").ok_or("no link")?;
        // The client called over the socket; the name is for those who call over TCP.
        Ok(Self { host: place.to_owned(), code: code.to_owned() })
    }

    fn enter(&self, stage: &Stage, place: &str, origin: &str) -> Outcome<(u16, String)> {
        let headers = [format!("Host: {place}"), format!("Origin: http://{origin}"), JSON.to_owned()];
        ask(stage, "POST /.sandbar/enter", &headers, &format!("{{\"code\":\"{}\"}}", self.code))
    }

    fn cookie(&self, stage: &Stage) -> Outcome<String> {
        let (status, answer) = self.enter(stage, &self.host, &self.host)?;
        let set = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let set = set.ok_or_else(|| format!("not let in: {status}"))?;
        Ok(set.split(';').next().unwrap_or_default().to_owned())
    }
}

fn get(stage: &Stage, place: &str, cookie: &str, more: &[&str]) -> Outcome<u16> {
    let mut headers = vec![format!("Host: {place}"), format!("Cookie: {cookie}")];
    headers.extend(more.iter().map(|&line| line.to_owned()));
    Ok(ask(stage, "GET /", &headers, "")?.0)
}

async fn own(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let origin = format!("Origin: http://{}", link.host);
    let status = get(stage, &link.host, &link.cookie(stage)?, &["Sec-Fetch-Site: same-origin", &origin])?;
    Ok(if status == 200 { Finding::escaped("200") } else { Finding::contained(status.to_string()) })
}

async fn cookie_elsewhere(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let cookie = link.cookie(stage)?;
    let value = cookie.split_once('=').map(|(_, value)| value).unwrap_or_default();
    let neighbour = stage.fresh(target.profile, &crate::stage::recipe(target.profile, RUNTIMES, &[])).await?;
    let other = Link::new(stage, &neighbour.id, 8888).await?;
    let port = Link::new(stage, &target.id, 8080).await?;
    let api = stage.address()?;
    let router = [host(stage)?, format!("Cookie: {cookie}"), format!("X-Sandbox-ID: {}", target.id)];
    let mut tried = vec![
        ("another sandbox".to_owned(), get(stage, &other.host, &cookie, &[])?),
        ("another port".to_owned(), get(stage, &port.host, &cookie, &[])?),
        ("the router".to_owned(), ask(stage, "GET /router/", &router, "")?.0),
    ];
    for cookie in [cookie.clone(), format!("sandbar={value}")] {
        let headers = [format!("Host: {api}"), format!("Cookie: {cookie}")];
        tried.push(("the API".to_owned(), ask(stage, "GET /v1/sandboxes", &headers, "")?.0));
    }
    stage.delete(&neighbour).await?;
    Ok(refused(&[401], tried))
}

async fn api_cookie(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let cookie = signed_in(stage)?;
    let renamed = cookie.replacen("sandbar=", "sandbar-preview=", 1);
    let here = format!("Host: {}", sign_in_host(stage)?);
    let router = [here, format!("Cookie: {cookie}"), format!("X-Sandbox-ID: {}", target.id)];
    Ok(refused(
        &[401],
        [
            ("as it is".to_owned(), get(stage, &link.host, &cookie, &[])?),
            ("renamed".to_owned(), get(stage, &link.host, &renamed, &[])?),
            ("at the router".to_owned(), ask(stage, "GET /router/", &router, "")?.0),
        ],
    ))
}

async fn forged(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let cookie = link.cookie(stage)?;
    let (expires, rest) = cookie.trim_start_matches("sandbar-preview=").split_once('.').ok_or("no time")?;
    let (owner, mac) = rest.rsplit_once('.').ok_or("no owner")?;
    let tried = [
        format!("9{expires}.{owner}.{mac}"),
        format!("+{expires}.{owner}.{mac}"),
        format!("0{expires}.{owner}.{mac}"),
        format!("{expires}.socket2.{mac}"),
        format!("{expires}.{owner}."),
        format!("{expires}.{owner}.{mac}="),
        "..".to_owned(),
    ];
    let tried = tried
        .iter()
        .map(|value| Ok((value.clone(), get(stage, &link.host, &format!("sandbar-preview={value}"), &[])?)));
    Ok(refused(&[401], tried.collect::<Outcome<Vec<_>>>()?))
}

async fn code(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let port = Link::new(stage, &target.id, 8080).await?;
    let api = stage.address()?;
    let mut tried = vec![
        ("another port".to_owned(), link.enter(stage, &port.host, &port.host)?.0),
        ("the API's name".to_owned(), link.enter(stage, &api, &api)?.0),
        ("a foreign page".to_owned(), link.enter(stage, &link.host, "evil.example")?.0),
        ("a page of another preview".to_owned(), link.enter(stage, &link.host, &port.host)?.0),
        ("a page of the API".to_owned(), link.enter(stage, &link.host, &api)?.0),
    ];
    link.cookie(stage)?;
    tried.push(("twice".to_owned(), link.enter(stage, &link.host, &link.host)?.0));
    Ok(refused(&[401, 403], tried))
}

async fn cross_site(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let cookie = link.cookie(stage)?;
    let api = format!("Origin: {}", stage.server.base()?);
    let pages: [&[&str]; 7] = [
        &["Sec-Fetch-Site: cross-site"],
        &["Sec-Fetch-Site: same-site"],
        &["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"],
        &["Origin: http://evil.example"],
        &["Origin: null"],
        &["Origin: http://evil.example", "Origin: http://evil.example"],
        &[&api],
    ];
    let mut tried = vec![];
    for page in pages {
        tried.push((format!("GET {page:?}"), get(stage, &link.host, &cookie, page)?));
        let mut headers = vec![format!("Host: {}", link.host), format!("Cookie: {cookie}"), JSON.to_owned()];
        headers.extend(page.iter().map(|&line| line.to_owned()));
        tried.push((format!("POST {page:?}"), ask(stage, "POST /execute", &headers, "{\"command\":\"true\"}")?.0));
    }
    let silent = [format!("Host: {}", link.host), format!("Cookie: {cookie}"), JSON.to_owned()];
    tried
        .push(("POST without an origin".to_owned(), ask(stage, "POST /execute", &silent, "{\"command\":\"true\"}")?.0));
    Ok(refused(&[403], tried))
}

/// The status of a WebSocket's beginning; the server inside speaks none, and answers 200.
fn socket(stage: &Stage, first: &str, headers: &[String]) -> Outcome<u16> {
    let mut all = headers.to_vec();
    all.extend(
        [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        .map(str::to_owned),
    );
    Ok(ask(stage, first, &all, "")?.0)
}

async fn sockets(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let other = Link::new(stage, &target.id, 8080).await?;
    let cookie = format!("Cookie: {}", link.cookie(stage)?);
    let operator = token(&stage.client, Role::Operator).await?;
    let mut tried = vec![];
    for origin in ["http://evil.example", "null", &stage.server.base()?, &format!("http://{}", other.host)] {
        let headers = [format!("Host: {}", link.host), cookie.clone(), format!("Origin: {origin}")];
        tried.push((origin.to_owned(), socket(stage, "GET /", &headers)?));
    }
    tried.push(("no origin".to_owned(), socket(stage, "GET /", &[format!("Host: {}", link.host), cookie])?));
    for origin in ["http://evil.example", &format!("http://{}", link.host)] {
        let headers =
            [host(stage)?, bearer(&operator), format!("X-Sandbox-ID: {}", target.id), format!("Origin: {origin}")];
        tried.push((format!("{origin} at the router"), socket(stage, "GET /router/", &headers)?));
    }
    Ok(refused(&[403], tried))
}

async fn own_socket(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let headers = [
        format!("Host: {}", link.host),
        format!("Cookie: {}", link.cookie(stage)?),
        format!("Origin: http://{}", link.host),
    ];
    let status = socket(stage, "GET /", &headers)?;
    Ok(if status == 200 {
        Finding::escaped("it reaches the server inside")
    } else {
        Finding::contained(status.to_string())
    })
}

async fn names(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let operator = token(&stage.client, Role::Operator).await?;
    let port = stage.address()?.rsplit(':').next().unwrap_or_default().to_owned();
    let id = &target.id;
    let mut tried = vec![];
    for name in [
        format!("{id}-8888.localhost.evil.example:{port}"),
        format!("{id}-8888localhost:{port}"),
        format!("{id}-8888.localhost"),
        format!("{id}-8888.localhost:1"),
        format!("x.{id}-8888.localhost:{port}"),
        format!("{id}-08888.localhost:{port}"),
        format!("{id}.localhost:{port}"),
        format!("x@{id}-8888.localhost:{port}"),
    ] {
        let headers = [format!("Host: {name}"), bearer(&operator)];
        tried.push((name, ask(stage, "GET /", &headers, "")?.0));
    }
    let both = [format!("Host: {}", stage.address()?), bearer(&operator)];
    tried.push(("two names".to_owned(), ask(stage, &format!("GET http://{id}-8888.localhost:{port}/"), &both, "")?.0));
    Ok(refused(&[400, 403, 404], tried))
}

/// What answers is the server inside, whose 404 is its own, or nobody.
async fn routes(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = Link::new(stage, &target.id, 8888).await?;
    let operator = token(&stage.client, Role::Operator).await?;
    let mut headers = vec![format!("Host: {}", link.host), bearer(&operator)];
    headers.extend(["X-Forwarded-Host", "X-Host", "Forwarded: host"].map(|name| match name.contains(':') {
        true => format!("{name}={}", stage.address().unwrap_or_default()),
        false => format!("{name}: {}", stage.address().unwrap_or_default()),
    }));
    let mut tried = vec![];
    for path in [
        "/v1/sandboxes",
        "/v1/tokens",
        "/api/sessions/x",
        "/metrics",
        "/router/",
        "/.sandbar/../v1/sandboxes",
        "//v1/sandboxes",
    ] {
        let (status, answer) = ask(stage, &format!("GET {path}"), &headers, "")?;
        let ours = answer.contains("\"sandboxes\"") || answer.contains("urn:sandbar") || answer.contains("sandbar_");
        tried.push((path.to_owned(), if ours { 200 } else { status }));
    }
    Ok(refused(&[404], tried))
}

async fn api_itself(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let operator = token(&stage.client, Role::Operator).await?;
    let (status, answer) = ask(stage, "GET /v1/sandboxes", &[host(stage)?, bearer(&operator)], "")?;
    let found = answer.contains("\"sandboxes\"");
    Ok(if found { Finding::escaped("by the API's name it lists") } else { Finding::contained(status.to_string()) })
}
