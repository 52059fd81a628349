//! A viewer's token on every route that reads: what idleness put away stays so, and nothing is made to see how it does.

use std::sync::atomic::Ordering;

use sandbar_api::{CreateToken, Role, SandboxState};
use sandbar_test_harness::Test;
use serde_json::{Value, json};

use crate::{
    inward::house::House,
    support::{Bench, test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("viewers::a_get_starts_nothing", async {
            let house = House::new().await;
            nothing_starts(&house).await;
            house.close().await;
        }),
        test("viewers::what_runs_is_looked_into", async {
            let house = House::new().await;
            let (viewer, _) = house.token(Role::Viewer, None).await;
            let bearer = format!("Bearer {viewer}");
            let path = house.bench.at("");
            let seen = house.send(&house.host(), "GET", &path, &[("authorization", &bearer)], "").await;
            assert_eq!(seen.status, 200, "{}", seen.text());
            house.close().await;
        }),
    ]
}

async fn nothing_starts(house: &House) {
    let bench = &house.bench;
    let (session, process) = bench.put_away("nap").await;
    let before = bench.provider.counts();
    let request = CreateToken { name: "viewer".to_owned(), role: Role::Viewer, session: None, ttl: None };
    let bearer = format!("Bearer {}", bench.engine.create_token(request).await.unwrap().secret);
    let document: Value = serde_json::from_str(include_str!("../../../../openapi.json")).unwrap();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        if item.get("get").is_none() {
            continue;
        }
        let path = path
            .replace("{sandbox}", "nap")
            .replace("{session}", &session)
            .replace("{session_id}", &session)
            .replace("{process}", &process)
            .replace("{template}", "sleepy")
            .replace("{port}", "8080")
            .replace("{path}", "etc/hosts");
        let paths = [path.clone(), format!("{path}?format=tar")];
        for path in paths.iter().filter(|path| !path.contains("format") || path.contains("/files/")) {
            for method in ["GET", "HEAD"] {
                // What goes on for ever is not waited for: its head is the answer to who may begin it.
                let headers = [("authorization", bearer.as_str())];
                let (head, _) = house.begin(&house.host(), method, path, &headers, "").await;
                assert_eq!(bench.provider.counts(), before, "{method} {path}: {}", head.status);
                let state = bench.engine.get("nap").await.unwrap().state;
                assert_eq!(state, SandboxState::Stopped, "{method} {path}: {}", head.status);
                asked += 1;
            }
        }
    }
    assert!(asked > 80, "{asked}");

    let file = "/v1/sandboxes/nap/files/etc/hosts";
    let refused = house.send(&house.host(), "GET", file, &[("authorization", &bearer)], "").await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "wrong_state".to_owned()));
    assert!(refused.text().contains("operator"), "what to do is not said: {}", refused.text());
    let probed = house.send(&house.host(), "GET", "/v1/host", &[("authorization", &bearer)], "").await;
    assert_eq!(probed.code(), "forbidden");

    // The control.
    let operator = house.bearer();
    let by_operator = [("authorization", operator.as_str())];
    assert_eq!(house.send(&house.host(), "GET", file, &by_operator, "").await.status, 200);
    assert_eq!(house.send(&house.host(), "GET", "/v1/host", &by_operator, "").await.status, 200);
    let (started, probed) = bench.provider.counts();
    assert_eq!((started, probed), (before.0 + 1, before.1 + 1));
    bench.engine.delete("nap").await.unwrap();
}

impl Bench {
    /// A sandbox that idleness stopped; its session, and a process that ran in it.
    pub(crate) async fn put_away(&self, name: &str) -> (String, String) {
        std::fs::write(self.directory.path().join("home/templates/sleepy.toml"), "[idle]\nstop_after = \"300ms\"\n")
            .unwrap();
        let made = self.post("/v1/sandboxes", &json!({"name": name, "template": "sleepy"})).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let ran = self.post(&format!("/v1/sandboxes/{name}/processes"), &json!({"argv": ["true"], "cwd": "/"})).await;
        assert_eq!(ran.status, 201, "{}", ran.text());
        let ran: Value = serde_json::from_slice(&ran.body).unwrap();
        while self.engine.get(name).await.unwrap().state != SandboxState::Stopped {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        (self.engine.get(name).await.unwrap().session.to_string(), ran["id"].as_str().unwrap().to_owned())
    }
}

impl crate::support::Bare {
    /// How often something was started, and how often the host was probed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.started.load(Ordering::SeqCst), self.probed.load(Ordering::SeqCst))
    }
}
