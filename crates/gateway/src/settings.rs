//! What an operator sets for all sandboxes: how names are resolved, which private addresses they may lead to, which roots
//! are trusted beyond the host's, and the bounds that keep one sandbox from using up the server.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Names that are not resolved but taken from here, lower-case. The addresses are vetted like any others.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Resolvers to ask instead of the host's.
    pub dns: Vec<SocketAddr>,
    /// Private ranges that allowed names may lead to.
    pub private: Vec<IpNet>,
    /// PEM certificates trusted beyond the host's.
    pub extra_roots: Vec<u8>,
    /// Connections of one sandbox at a time; twice as many requests, and as many connections to servers. The latter two
    /// as they are when its gate is opened.
    pub connections: usize,
    /// To receive a request's head, and for TLS handshakes.
    pub head_timeout: Duration,
    /// To reach a server.
    pub connect_timeout: Duration,
    /// Without a byte in either direction.
    pub idle_timeout: Duration,
    /// The largest LLM request.
    pub llm_body: usize,
    /// How long an LLM answer is read on for its usage after its client has gone.
    pub llm_drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hosts: BTreeMap::new(),
            dns: Vec::new(),
            private: Vec::new(),
            extra_roots: Vec::new(),
            connections: 512,
            head_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(900),
            llm_body: 64 << 20,
            llm_drain: Duration::from_secs(600),
        }
    }
}
