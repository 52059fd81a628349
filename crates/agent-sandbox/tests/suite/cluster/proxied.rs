//! A cluster behind a proxy, by the programs that people run as such.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent_sandbox::{AgentSandbox, ClaimBuilder, Error, Exec};
use kube::config::Kubeconfig;

use sandbar_test_harness::not_run;

use crate::cluster::place::{LONG, Place, sleeper};

pub(crate) struct Proxy {
    program: Child,
    pub(crate) port: u16,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.program.kill().expect("killed");
        self.program.wait().expect("ended");
    }
}

impl Proxy {
    /// The port is free a moment before, so that another one is tried when somebody was faster.
    fn start(command: impl Fn(u16) -> Command) -> Self {
        for _ in 0..5 {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
            if let Some(proxy) = Self::at(free.port(), command(free.port())) {
                return proxy;
            }
        }
        panic!("no proxy listens");
    }

    fn at(port: u16, mut command: Command) -> Option<Self> {
        let program = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        let mut proxy = Self { program, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && proxy.program.try_wait().expect("its state").is_none() {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(proxy);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub(crate) fn socks() -> Self {
        Self::start(microsocks)
    }

    /// Another one in the place of one that is gone.
    pub(crate) fn socks_at(port: u16) -> Self {
        Self::at(port, microsocks(port)).expect("the same port")
    }
}

fn microsocks(port: u16) -> Command {
    let mut command = Command::new("microsocks");
    command.args(["-i", "127.0.0.1", "-u", "me", "-P", "it", "-p", &port.to_string()]);
    command
}

pub(crate) fn installed(name: &str, program: &str) -> bool {
    let found = std::env::var("PATH").unwrap_or_default().split(':').any(|path| Path::new(path).join(program).exists());
    if !found {
        not_run(name, &format!("{program} is not installed"));
    }
    found
}

pub(crate) async fn with_proxy(place: &Place, directory: &Path, url: &str) -> Result<AgentSandbox, Error> {
    let mut file =
        Kubeconfig::read_from(std::env::var_os("SANDBAR_CLUSTER").expect("checked")).expect("the kubeconfig");
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.proxy_url = Some(url.to_owned());
    }
    let path = directory.join("kubeconfig");
    std::fs::write(&path, serde_json::to_string(&file).expect("text")).expect("written");
    AgentSandbox::from_kubeconfig(Some(&path), None, Some(place.client.namespace())).await
}

/// Requests, watches and a command go through it, and nothing goes past it.
async fn goes_through(place: &Place, proxy: Proxy, scheme: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let port = proxy.port;
    let through = with_proxy(place, directory.path(), &format!("{scheme}://me:it@127.0.0.1:{port}")).await;
    let through = through.expect("the cluster");
    place.pool("proxied", sleeper(), 0).await;
    let claimed = through.claim(ClaimBuilder::generated("proxied").shutdown_after(LONG)).await.expect("a claim");
    let ready = through.wait_ready(&claimed, LONG).await.expect("a sandbox");
    assert_eq!(through.exec(&ready.sandbox_name, Exec::new(["echo", "there"])).await.expect("done").stdout, b"there\n");

    drop(proxy);
    let refused = through.templates().list(None).await.expect_err("nobody passes it on");
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
    let wrong = with_proxy(place, directory.path(), &format!("{scheme}://127.0.0.1:{port}")).await;
    let wrong = wrong.expect_err("nobody listens");
    assert!(matches!(wrong, Error::Unreachable { .. }), "{wrong}");
}

#[tokio::test]
async fn an_http_proxy() {
    if !installed("an_http_proxy", "tinyproxy") {
        return;
    }
    let Some(place) = Place::new("an_http_proxy").await else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let proxy = Proxy::start(|port| {
        let file = directory.path().join("tinyproxy.conf");
        let text = format!("Port {port}\nListen 127.0.0.1\nMaxClients 50\nTimeout 600\nBasicAuth me it\n");
        std::fs::write(&file, text).expect("written");
        let mut command = Command::new("tinyproxy");
        command.arg("-d").arg("-c").arg(file);
        command
    });
    let without = with_proxy(&place, directory.path(), &format!("http://127.0.0.1:{}", proxy.port)).await;
    let without = without.expect_err("it wants a login");
    assert!(matches!(without, Error::Unreachable { .. }) && without.to_string().contains("auth"), "{without}");
    goes_through(&place, proxy, "http").await;
    place.close().await;
}

#[tokio::test]
async fn a_socks_proxy() {
    if !installed("a_socks_proxy", "microsocks") {
        return;
    }
    let Some(place) = Place::new("a_socks_proxy").await else { return };
    goes_through(&place, Proxy::socks(), "socks5").await;
    place.close().await;
}
