//! Kubeconfigs that lead nowhere.

use std::path::Path;

use agent_sandbox::{AgentSandbox, Error};

async fn open(text: &str, context: Option<&str>) -> Error {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config");
    std::fs::write(&path, text).expect("written");
    AgentSandbox::from_kubeconfig(Some(&path), context, None).await.expect_err("it leads nowhere")
}

const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
"#;

#[tokio::test]
async fn each_has_an_error_of_its_own() {
    let path = Path::new("/nonexistent/kubeconfig");
    let error = AgentSandbox::from_kubeconfig(Some(path), None, None).await.expect_err("no such file");
    assert!(matches!(&error, Error::NoKubeconfig { path: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");

    let error = open("{not yaml", None).await;
    assert!(matches!(error, Error::BadKubeconfig { .. }), "{error}");

    let error = open(KUBECONFIG, Some("elsewhere")).await;
    assert!(matches!(&error, Error::ContextNotFound { context } if context == "elsewhere"), "{error}");

    let error = open(&KUBECONFIG.replace("current-context: here", ""), None).await;
    assert!(matches!(error, Error::BadKubeconfig { .. }), "{error}");

    let error = open(KUBECONFIG, None).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_transient() && error.to_string().to_lowercase().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_that_of_the_chosen_context() {
    let two =
        KUBECONFIG.replace("contexts: [", "contexts: [{name: there, context: {cluster: there, user: me}}, ").replace(
            "clusters: [",
            "clusters: [{name: there, cluster: {server: \"http://127.0.0.1:1\", proxy-url: \"https://me:secret@p\"}}, ",
        );
    let error = open(&two, Some("there")).await;
    assert!(matches!(&error, Error::BadProxy { .. }), "{error}");
    assert!(error.to_string().contains("proxy-url") && !error.to_string().contains("secret"), "{error}");
    let error = open(&two, None).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
