//! Around the gate there is nothing: no route, no resolver, no socket of the host; and through it nothing of the host, of a
//! neighbour or of a second hop that the rules do not name.

use sandbar_api::StartProcess;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    names::{RULES, WIDE},
    stage::{Stage, Target, recipe},
    support::{Outcome, until},
    wire::{SILENCE, Step, brief, get, status, tunnel},
};

const ONE: &[&str] = &["standard"];
const REFUSED: &str = "ENETUNREACH|EPERM|EACCES|ECONNREFUSED|EAFNOSUPPORT";

pub(crate) fn all() -> Vec<Attack> {
    let probe = |name, contained, control| Attack::probe(Class::Gate, name, contained, control).with(RULES);
    let loopback = Control::Act("to its own loopback", act!(own_loopback));
    let gate = |name, with, act, place, control| {
        Attack::act(Class::Gate, name, act, Control::Act(place, control)).on(ONE).with(with)
    };
    vec![
        probe("lookup_of_any", "", Control::Act("of a name that it has itself", act!(own_lookup))),
        probe("resolvers_by_udp", REFUSED, loopback),
        probe("quic", REFUSED, loopback),
        Attack::shell(Class::Gate, "proxy_variables_unset", UNSET, Control::Act("with them", act!(with_proxy)))
            .with(RULES),
        Attack::shell(Class::Gate, "sockets_of_the_gate_in_files", SOCKETS, Control::Host).with(RULES),
        gate("server_of_the_host", WIDE, act!(host_server), "from the host", act!(host_server_itself)),
        gate(
            "server_of_the_host_with_a_stolen_token",
            WIDE,
            act!(stolen_token),
            "from the host",
            act!(stolen_token_on_host),
        ),
        gate("loopback_of_the_gate", WIDE, act!(gate_through_gate), "the gate asked directly", act!(gate_itself)),
        gate("relay_inside", RULES, act!(relay_denied), "to a host that is allowed", act!(relay_allowed)),
        gate("connect_inside_a_connection", RULES, act!(inner_connect), "a request instead", act!(inner_request)),
        gate(
            "url_of_another_host_inside_a_connection",
            RULES,
            act!(inner_url),
            "a request instead",
            act!(inner_request),
        ),
        gate("vendor_asked_around_the_budget", RULES, act!(vendor), "where it is allowed", act!(vendor_allowed)),
    ]
}

async fn own_loopback(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["own_loopback"]).await
}

async fn own_lookup(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["lookup", "127.0.0.1"]).await
}

const UNSET: &str = "unset HTTPS_PROXY https_proxy HTTP_PROXY http_proxy ALL_PROXY all_proxy
command -v curl >/dev/null || { echo not run: there is no curl; exit; }
for url in http://192.0.2.1/ http://169.254.169.254/latest/meta-data/ http://open.out.test/ https://1.1.1.1/ http://[2001:db8::1]/; do
  curl -s --noproxy '*' --max-time 5 -o /dev/null $url && { echo escaped: $url; exit; }
done
echo contained: curl ends with $?";

async fn with_proxy(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = format!("curl -s --max-time 10 http://open.out.test:{}/curl", stage.outside.plain);
    let said = stage.sh(target, &script).await?.stdout;
    Ok(if said.contains("arrived") { Finding::escaped(said.trim()) } else { Finding::contained(said) })
}

/// Whoever connects to the socket beside the guest is given the listener: nobody inside may see it.
/// Everywhere only if it is not where it would be: a host has many files.
const SOCKETS: &str = "found=$(find /run /dev/shm /workspace $SANDBAR_HOME/local -type s 2>/dev/null)
[ -n \"$found\" ] || found=$(find /tmp -type s 2>/dev/null; find / -xdev -type s 2>/dev/null)
[ -n \"$found\" ] && echo escaped: $(echo $found | cut -c 1-80) || echo contained: there is none";

fn port(stage: &Stage) -> Outcome<String> {
    Ok(stage.address()?.rsplit(':').next().unwrap_or_default().to_owned())
}

/// By every name and notation that leads to it, asked for what needs no token.
async fn host_server(stage: &Stage, target: &Target) -> Outcome<Finding> {
    reach_server(stage, target, "GET", "/healthz", "").await
}

async fn stolen_token(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = format!("Authorization: Bearer {}\r\n", stage.token);
    reach_server(stage, target, "GET", "/v1/sandboxes", &token).await
}

async fn reach_server(stage: &Stage, target: &Target, method: &str, path: &str, more: &str) -> Outcome<Finding> {
    let (port, mut said) = (port(stage)?, vec![]);
    for name in [
        "127.0.0.1",
        "localhost",
        "api.out.test",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "127.1",
        "localhost.localdomain",
        "x.localhost",
    ] {
        // In a tunnel a client chooses the Host that the server wants to hear.
        let own = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{more}Connection: close\r\n\r\n");
        let url = format!(
            "{method} http://{name}:{port}{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{more}Connection: close\r\n\r\n"
        );
        for (way, steps) in [
            ("tunnel", tunnel(format!("{name}:{port}"), vec![Step::send(own)])),
            ("url", vec![Step::send(url), Step::Answer(SILENCE)]),
        ] {
            let heard = stage.wire(target, &steps).await?;
            let last = heard.rsplit("HTTP/1.1 ").next().and_then(|rest| rest.get(..3)).unwrap_or_default();
            let through = way == "tunnel" && heard.matches("HTTP/1.1 ").count() > 1 || way == "url";
            if through && last.starts_with('2') {
                return Ok(Finding::escaped(format!("{name} by {way}: the server answered {last}")));
            }
            said.push(brief(&heard));
        }
    }
    said.sort();
    said.dedup();
    Ok(Finding::contained(said.join(", ")))
}

async fn host_server_itself(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let answer = stage.send(&get("/healthz", &stage.address()?))?;
    Ok(if status(&answer) == "200" { Finding::escaped("200") } else { Finding::contained(answer) })
}

async fn stolen_token_on_host(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (host, token) = (stage.address()?, &stage.token);
    let answer = stage.send(&format!(
        "GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    ))?;
    Ok(if status(&answer) == "200" { Finding::escaped("200") } else { Finding::contained(answer) })
}

/// The gate as a place to go to by CONNECT: on the host there is somebody else's at that port, or nobody.
async fn gate_through_gate(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut said = vec![];
    for name in ["127.0.0.1", "localhost", "[::1]"] {
        let steps = tunnel(format!("{name}:7228"), vec![Step::send(get("/", "x"))]);
        let heard = stage.wire(target, &steps).await?;
        if status(&heard) == "200" && heard.contains("way out, an HTTP proxy") {
            return Ok(Finding::escaped(format!("{name}: a gate answered through the gate")));
        }
        said.push(brief(&heard));
    }
    Ok(Finding::contained(said.join(", ")))
}

async fn gate_itself(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let heard = stage.wire(target, &[Step::send(get("/", "127.0.0.1:7228")), Step::Answer(SILENCE)]).await?;
    let found = heard.contains("way out, an HTTP proxy");
    Ok(if found { Finding::escaped("it answered") } else { Finding::contained(heard) })
}

async fn relayed(stage: &Stage, target: &Target, name: &str) -> Outcome<Finding> {
    let request = StartProcess {
        argv: ["/workspace/attacks", "--inside", "relay", "4712"].map(str::to_owned).to_vec(),
        ..StartProcess::default()
    };
    let relay = stage.client.start_process(&target.id, &request).await?.id.to_string();
    until("the relay listens", async || Ok(stage.client.process(&target.id, &relay).await?.output.end > 0)).await?;
    let mark = stage.mark();
    let place = format!("{name}:{}", stage.outside.plain);
    let mut steps = vec![Step::At("127.0.0.1:4712")];
    steps.extend(tunnel(&place, vec![Step::send(get(&format!("/{mark}"), &place))]));
    let heard = stage.wire(target, &steps).await;
    stage.client.signal(&target.id, &relay, "KILL").await?;
    let heard = heard?;
    Ok(if stage.outside.saw(&mark) { Finding::escaped("it arrived") } else { Finding::contained(brief(&heard)) })
}

async fn relay_denied(stage: &Stage, target: &Target) -> Outcome<Finding> {
    relayed(stage, target, "denied.out.test").await
}

async fn relay_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    relayed(stage, target, "open.out.test").await
}

/// On a connection that is terminated, to a server that would be a proxy if it were asked.
async fn inner(stage: &Stage, target: &Target, request: &str) -> Outcome<Finding> {
    let (mark, tls) = (stage.mark(), stage.outside.tls);
    let request = request.replace("PORT", &tls.to_string()).replace("MARK", &mark);
    let steps =
        tunnel(format!("judged.out.test:{tls}"), vec![Step::Tls("judged.out.test", "http/1.1"), Step::send(request)]);
    let heard = stage.wire(target, &steps).await?;
    let last = heard.rsplit("HTTP/1.1 ").next().and_then(|rest| rest.get(..3)).unwrap_or_default().to_owned();
    Ok(if stage.outside.saw(&mark) { Finding::escaped("it arrived") } else { Finding::contained(last) })
}

async fn inner_connect(stage: &Stage, target: &Target) -> Outcome<Finding> {
    inner(stage, target, "CONNECT denied.out.test:PORT HTTP/1.1\r\nHost: judged.out.test:PORT\r\nX-MARK: 1\r\n\r\nGET /MARK HTTP/1.1\r\nHost: denied.out.test\r\n\r\n").await
}

async fn inner_url(stage: &Stage, target: &Target) -> Outcome<Finding> {
    inner(
        stage,
        target,
        "GET http://denied.out.test:PORT/open/MARK HTTP/1.1\r\nHost: judged.out.test:PORT\r\nConnection: close\r\n\r\n",
    )
    .await
}

async fn inner_request(stage: &Stage, target: &Target) -> Outcome<Finding> {
    inner(stage, target, "GET /open/MARK HTTP/1.1\r\nHost: judged.out.test:PORT\r\nConnection: close\r\n\r\n").await
}

/// The vendor's own port, where no budget counts.
async fn vendor(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (port, before) = (stage.outside.upstream.address.port(), stage.outside.upstream.seen().len());
    let body = "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"write:5\"}]}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: llm.out.test:{port}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let steps =
        tunnel(format!("llm.out.test:{port}"), vec![Step::Tls("llm.out.test", "http/1.1"), Step::send(request)]);
    let heard = stage.wire(target, &steps).await?;
    let seen = stage.outside.upstream.seen().split_off(before);
    Ok(match seen.first() {
        Some(one) => Finding::escaped(format!("it was asked, with {:?}", one.headers.get("authorization"))),
        None => Finding::contained(brief(&heard)),
    })
}

async fn vendor_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    vendor(stage, &*stage.target(target.profile, &recipe(target.profile, WIDE, &[])).await?).await
}
