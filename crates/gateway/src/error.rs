//! Why the gateway cannot be set up as it was told.

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("no resolver can be made")]
    Resolver(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the trusted certificates cannot be used: {0}")]
    Roots(String),
}
