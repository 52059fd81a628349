//! The way out of a pod: through the server alone, as its rules say, with secrets that the pod never has.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::Stdio,
    sync::Arc,
};

use serde_json::json;

use crate::{
    gate::roots::Roots,
    gate::site::{Site, reply},
    kubernetes::place::{Place, Turn, until},
    support::{Outcome, cluster::Cluster},
};

const VALUE: &str = "a-token-of-great-value-71";
const OPEN: &str = "sandbar.test/busybox:latest";

/// A server with a name, at an address that pods without a policy reach.
pub(crate) struct Upstream {
    pub(crate) site: Site,
    plain: Site,
    roots: Roots,
    address: IpAddr,
}

impl Upstream {
    pub(crate) fn start() -> Outcome<Self> {
        let (roots, address) = (Roots::new()?, address()?);
        let at = SocketAddr::from((address, 0));
        let site = Site::at(at, "web.test", Some(&roots), Arc::new(|seen| reply(200, format!("{}\n", seen.path()))))?;
        let plain = Site::at(at, "plain.test", None, Arc::new(|_| reply(200, "connected\n")))?;
        Ok(Self { site, plain, roots, address })
    }

    pub(crate) fn furnish(&self, home: &Path) -> Outcome {
        let address = self.address;
        let config = format!(
            "[network]\nprivate = [\"{address}/32\"]\nroots = \"test-ca.pem\"\n\n[network.hosts]\n\
             \"web.test\" = [\"{address}\"]\n\"plain.test\" = [\"{address}\"]\n"
        );
        fs::write(home.join("test-ca.pem"), &self.roots.pem)?;
        Ok(fs::write(home.join("gateway.toml"), config)?)
    }

    pub(crate) fn secret(&self, place: &Place) -> Outcome {
        let arguments = ["secret", "set", "API_TOKEN", "--host", "web.test", "--as", "header:Authorization:Bearer {}"];
        let mut child = place.server.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().ok_or("no stdin")?.write_all(VALUE.as_bytes())?;
        assert!(child.wait()?.success(), "the secret was not set");
        Ok(())
    }

    /// With the secret, which only this server sees.
    pub(crate) fn expect_reached(&self, place: &Place, sandbox: &str) -> Outcome {
        let before = self.site.seen().len();
        let ask =
            format!("curl -sS --max-time 20 -H \"Authorization: Bearer $API_TOKEN\" https://{}/in", self.site.place);
        assert_eq!(place.inside(sandbox, &ask)?, "/in\n");
        assert_eq!(self.site.seen()[before].header("authorization"), format!("Bearer {VALUE}"));
        let placeholder = place.inside(sandbox, "echo $API_TOKEN")?;
        assert!(placeholder.starts_with("sbp_"), "{placeholder}");
        Ok(())
    }

    /// Neither by the gate nor around it.
    pub(crate) fn expect_denied(&self, place: &Place, sandbox: &str) -> Outcome {
        let ask =
            format!("curl -s --max-time 20 -o /dev/null -w '%{{http_code}}' http://{}/ || true", self.plain.place);
        assert_eq!(place.inside(sandbox, &ask)?, "403");
        for target in [self.plain.address, (self.address, 6443).into()] {
            let around = "import socket, sys\ntry: socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)\n\
                          except OSError as error: print('refused', error)\nelse: print('connected')";
            let (host, port) = (target.ip().to_string(), target.port().to_string());
            let said = place.sandbar(&["exec", sandbox, "--", "python3", "-c", around, &host, &port])?;
            assert!(said.starts_with("refused"), "{target}: {said}");
        }
        assert!(self.plain.seen().is_empty(), "it got around the gate");
        Ok(())
    }
}

/// This host's, as the cluster's API server sees it.
fn address() -> Outcome<IpAddr> {
    let Some(cluster) = Cluster::find() else { return Ok(IpAddr::from([127, 0, 0, 1])) };
    let config = fs::read_to_string(cluster.kubeconfig)?;
    let server =
        config.split_whitespace().skip_while(|word| !word.contains("server")).find(|word| word.contains("://"));
    let server = server.and_then(|word| word.split("://").nth(1)).ok_or("no server in the kubeconfig")?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server.trim_end_matches(['"', ',', '/']))?;
    Ok(socket.local_addr()?.ip())
}

/// Without a policy the same address is reached: what is refused above is refused by it.
fn expect_open_without_policy(place: &Place, up: &Upstream) -> Outcome {
    let url = format!("http://{}/", up.plain.address);
    let restricted = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = json!({
        "name": "c", "image": std::env::var("BUSYBOX_IMAGE").unwrap_or_else(|_| OPEN.into()), "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/wget", "-q", "-O", "-", url], "securityContext": restricted,
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "open"},
        "spec": {"restartPolicy": "OnFailure", "containers": [container]},
    });
    place.apply(&pod)?;
    until("the control connects", || Ok(place.kubectl(&["logs", "open"]).is_ok_and(|said| said == "connected\n")))?;
    place.kubectl(&["delete", "pod", "open", "--grace-period=0", "--force"])?;
    Ok(())
}

/// Words that only the server knows, searched for in all that a pod shows. They are told on standard input, lest the
/// search find itself.
fn found_inside(place: &Place, sandbox: &str, word: &str) -> Outcome<String> {
    let script = "read -r word
        printf '%s\\n' \"$word\" | grep -rlsaF -f /dev/stdin /workspace /home /tmp /run /dev/shm /etc
        for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
            printf '%s\\n' \"$word\" | grep -qsaF -f /dev/stdin $file && echo $file
        done; true";
    let mut command = place.server.command(&["exec", "-i", "--timeout", "60s", sandbox, "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    writeln!(child.stdin.take().ok_or("no stdin")?, "{word}")?;
    Ok(crate::support::text(&child.wait_with_output()?.stdout))
}

#[test]
fn the_only_way_out_is_the_gate() -> Outcome {
    let up = Upstream::start()?;
    let furnish = |home: &Path| up.furnish(home);
    let opened = Place::with("the_only_way_out_is_the_gate", Turn::shared, "reach = \"pod_ip\"", furnish)?;
    let Some(mut place) = opened else { return Ok(()) };
    up.secret(&place)?;
    place.sandbar(&["create", "--name", "a", "--allow", &up.site.place, "--secret", "API_TOKEN"])?;
    up.expect_reached(&place, "a")?;
    up.expect_denied(&place, "a")?;
    expect_open_without_policy(&place, &up)?;
    assert_eq!(up.plain.seen().len(), 1, "the control");

    let placeholder = place.inside("a", "printf %s $API_TOKEN")?;
    assert!(found_inside(&place, "a", &placeholder)?.contains("/environ"), "the control");
    let encoded = sandbar_api::bytes::encode(VALUE.as_bytes());
    let key = fs::read(place.server.home.path().join("secret.key"))?;
    let key = String::from_utf8(key).unwrap_or_else(|error| sandbar_api::bytes::encode(error.as_bytes()));
    for word in [VALUE, &encoded, key.trim()] {
        assert_eq!(found_inside(&place, "a", word)?, "", "it has {word}");
    }
    assert_eq!(
        place.inside("a", "ls -d /var/run/secrets /run/secrets 2> /dev/null; env | grep -c KUBERNETES_; true")?,
        "0\n"
    );

    // A connection that is asked for while the server is away is served when it is back.
    let ask = format!(
        "until [ -e /tmp/go ]; do sleep 0.1; done; curl -sS --max-time 60 https://{}/later > /workspace/later 2>&1",
        up.site.place
    );
    place.sandbar(&["exec", "-d", "a", "--", "sh", "-c", &ask])?;
    let pod = place.pod("a")?;
    place.server.kill()?;
    place.kubectl(&["exec", &pod, "--", "touch", "/tmp/go"])?;
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(!up.site.saw("/later"), "it got around the gate");
    place.server.restart()?;
    until("it came through", || Ok(up.site.saw("/later")))?;
    until("it was answered", || Ok(place.inside("a", "cat /workspace/later")? == "/later\n"))?;
    place.sandbar(&["rm", "a"])?;
    place.expect_nothing_left()
}
