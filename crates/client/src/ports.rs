//! Servers that run in a sandbox, reached over connections to their ports, by a browser, or through the router.

use reqwest::{Method, StatusCode, header};
use sandbar_api::{Code, CreatePreview, CreateRouterToken, HumanDuration, Preview, Problem, RouterToken};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Client, Error, Result};

impl Client {
    /// Connects to a TCP port on the sandbox's loopback. Shut down, the connection tells inside that nothing more comes
    /// and can still be read from. It ends with the server; the next call makes another one.
    pub async fn dial(
        &self,
        sandbox: &str,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug + use<>> {
        let port = port.to_string();
        let request = self
            .request(Method::GET, &["v1", "sandboxes", sandbox, "ports", &port])
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "tcp");
        let response = self.send(request).await.map_err(|error| self.too_old(error))?;
        let became = response.headers().get(header::UPGRADE).map(header::HeaderValue::as_bytes);
        if response.status() != StatusCode::SWITCHING_PROTOCOLS || became != Some(b"tcp") {
            return Err(self.foreign(response.status().as_u16(), "it is no connection to a port"));
        }
        response.upgrade().await.map_err(|error| self.transport(error))
    }

    /// A link that lets one browser in to the server on this port.
    pub async fn preview(&self, sandbox: &str, port: u16) -> Result<Preview> {
        self.post(&["v1", "sandboxes", sandbox, "previews"], &CreatePreview { port }).await
    }

    /// A token for the agent-sandbox router, good for this sandbox alone.
    pub async fn router_token(&self, sandbox: &str, ttl: HumanDuration) -> Result<RouterToken> {
        self.post(&["v1", "sandboxes", sandbox, "router-token"], &CreateRouterToken { ttl }).await
    }

    fn too_old(&self, error: Error) -> Error {
        if error.code() != Some(Code::UnknownRoute) {
            return error;
        }
        let detail = format!("The server at {} is too old to connect to ports.", self.server());
        Problem::new(Code::UnknownRoute, detail, "Restart it with the program of this version.").into()
    }
}
