//! Servers that cannot be trusted, told by cause; secrets never reach them.

use sandbar_policy::Effect::Allow;

use crate::{
    egress::server::{Server, Shown, issuer},
    egress::world::World,
};

async fn told(shown: Shown) -> String {
    let server = Server::shows(shown).await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("secret.example.test:{port}"))]).await;
    world.warden.grant("token", "ph_1", &["secret.example.test"], "header:x-key:{}");
    world.warden.secret("token", Some("s3cret"));
    let reply = world.get("secret.example.test", port, "/", &[("x-key", "ph_1")]).await;
    assert!(server.seen().is_empty());
    assert_eq!(reply.status, 502, "{}", reply.text());
    reply.text()
}

#[tokio::test]
async fn an_expired_certificate() {
    assert!(told(Shown { expired: true, ..Shown::default() }).await.contains("certificate has expired"));
}

#[tokio::test]
async fn a_certificate_for_another_name() {
    let names = vec!["elsewhere.test".to_owned()];
    assert!(told(Shown { names, ..Shown::default() }).await.contains("certificate is for another name"));
}

#[tokio::test]
async fn an_unknown_issuer() {
    assert!(told(Shown { issuer: Some(issuer("nobody")), ..Shown::default() }).await.contains("unknown issuer"));
}

#[tokio::test]
async fn a_forger_of_the_trusted_name() {
    let told = told(Shown { issuer: Some(issuer("the tests' authority")), ..Shown::default() }).await;
    assert!(told.contains("certificate cannot be trusted"), "{told}");
}

#[tokio::test]
async fn no_tls_at_all() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port} GET /**"))]).await;
    let reply = world.get("a.example.test", port, "/", &[]).await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("does not speak TLS"), "{}", reply.text());
}
