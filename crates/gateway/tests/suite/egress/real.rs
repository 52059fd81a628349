//! Clients as people use them, where this host has them.

use std::{path::PathBuf, process::Stdio};

use sandbar_policy::Effect::Allow;
use tokio::process::Command;

use crate::{egress::server::Server, egress::world::World};

/// Runs it with the gateway as proxy and the sandbox's authority as only root; absent if the host lacks it.
async fn run(world: &World, test: &str, program: &str, arguments: &[&str]) -> Option<String> {
    let home = tempfile::tempdir().expect("a directory");
    let roots: PathBuf = home.path().join("roots.pem");
    std::fs::write(&roots, world.authority.certificate_pem()).expect("written");
    let proxy = format!("http://{}", world.proxy);
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for name in ["http_proxy", "https_proxy", "HTTPS_PROXY"] {
        command.env(name, &proxy);
    }
    for name in ["CURL_CA_BUNDLE", "SSL_CERT_FILE"] {
        command.env(name, &roots);
    }
    match command.stdin(Stdio::null()).output().await {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some(String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) => {
            sandbar_test_harness::missing(test, &format!("{program} ({error})"));
            None
        }
    }
}

async fn world(server: &Server) -> World {
    let port = server.port();
    let world = World::new(&[(Allow, &format!("secret.example.test:{port}"))]).await;
    world.warden.grant("token", "ph_real_1", &["secret.example.test"], "header:Authorization:Bearer {}");
    world.warden.secret("token", Some("s3cret"));
    world
}

#[tokio::test]
async fn curl() {
    let server = Server::tls().await;
    let world = world(&server).await;
    let url = format!("https://secret.example.test:{}/x", server.port());
    for version in ["--http1.1", "--http2"] {
        let arguments = ["-sS", version, "-H", "Authorization: Bearer ph_real_1", "-d", "some body", &url];
        let Some(output) = run(&world, "curl", "curl", &arguments).await else { return };
        if output.contains("does not support this") {
            sandbar_test_harness::partly_not_run("curl", &format!("{version}: {output}"));
            continue;
        }
        assert_eq!(output, "some body");
        assert_eq!(server.last().headers["authorization"], "Bearer s3cret");
    }
    let plain = format!("http://secret.example.test:{}/x", server.port());
    let output = run(&world, "curl", "curl", &["-sS", "-H", "X: ph_real_1", &plain]).await.expect("curl");
    assert!(output.contains("only goes to"), "{output}");
    let output = run(&world, "curl", "curl", &["-sS", "-v", "https://elsewhere.test/"]).await.expect("curl");
    assert!(output.contains("403"), "{output}");
}

/// As strict about certificates as Python has become by default.
const STRICT: &str = "
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.verify_flags |= ssl.VERIFY_X509_STRICT
request = urllib.request.Request(sys.argv[1], headers={'Authorization': 'Bearer ph_real_1'}, data=b'some body')
print(urllib.request.urlopen(request, context=context).read().decode())
";

#[tokio::test]
async fn python() {
    let server = Server::tls().await;
    let world = world(&server).await;
    let url = format!("https://secret.example.test:{}/x", server.port());
    let Some(output) = run(&world, "python", "python3", &["-c", STRICT, &url]).await else { return };
    assert_eq!(output, "some body\n");
    assert_eq!(server.last().headers["authorization"], "Bearer s3cret");
}
