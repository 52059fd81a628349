//! A server whose certificate nobody vouches for.

use std::sync::Arc;

use sandbar_client::{Client, Error};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::test]
async fn an_untrusted_certificate_is_no_absent_server() -> Outcome {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = made.signing_key.serialize_der().try_into()?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            // The client hangs up, which is the point.
            let _ = acceptor.accept(stream).await;
        }
    });
    let client = Client::tcp(&format!("https://localhost:{port}"), Some("sbt_x"))?;
    let error = client.templates().await.err().ok_or("it was trusted")?;
    assert!(matches!(error, Error::Untrusted { .. }), "{error:?}");
    assert!(error.fix().is_some_and(|fix| fix.contains("SSL_CERT_FILE")));
    Ok(())
}
