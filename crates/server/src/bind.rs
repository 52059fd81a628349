//! Listeners: where the server can be reached, refused before it starts when that would be unsafe or impossible.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::Router;
use rustls::pki_types::pem;
use sandbar_engine::Engine;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    App, Surface,
    access::Site,
    certificate::{Certificate, Tls},
    codes::Codes,
    mcp,
    observe::Meters,
    router, routes,
    sign_in::SignIn,
};

#[derive(Debug, Clone)]
pub struct Options {
    /// `None`: the Unix socket only. Port 0: any free one.
    pub tcp: Option<SocketAddr>,
    /// Demanded when `tcp` is not a loopback address.
    pub tls: Option<Tls>,
    pub socket: PathBuf,
    pub version: &'static str,
    /// Previews are below it; `localhost` unless given.
    pub preview_domain: Option<String>,
    /// Other servers pass connections on to this one, which were made to their ports.
    pub shared: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "refusing to listen on {0} without TLS: anybody on the network could read tokens. Give a certificate and key, or listen on 127.0.0.1"
    )]
    NeedsTls(SocketAddr),
    #[error(
        "cannot listen on {0}: the address is in use. Stop what uses it (another `sandbar up`?), or choose another with --listen"
    )]
    AddressInUse(SocketAddr),
    #[error("cannot listen on {address}. Choose another address with --listen")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("cannot answer supervisors on {0}: the address is in use. Choose another with --health-listen")]
    HealthInUse(SocketAddr),
    #[error("cannot answer supervisors on {address}. Choose another address with --health-listen")]
    Health { address: SocketAddr, source: io::Error },
    #[error("cannot read the TLS {what} {path}. Give a PEM file that this user may read")]
    Pem { what: &'static str, path: PathBuf, source: pem::Error },
    #[error("{0} holds no certificate. Give a PEM file with the server's certificate first, then its intermediates")]
    NoCertificate(PathBuf),
    #[error("the TLS certificate and key cannot be used. Give a certificate and the private key it was made for")]
    Tls(#[source] rustls::Error),
    #[error(
        "the socket path {path} is too long: {length} bytes, and Unix allows {MAX_SOCKET_PATH}. Use a home with a shorter path"
    )]
    SocketTooLong { path: PathBuf, length: usize },
    #[error("{0} is in the way: it is not a socket. Move it, or use another home")]
    NotASocket(PathBuf),
    #[error(
        "{path} can be written by others (mode {mode:04o}), who could put their own socket there. Run `chmod 700` on it"
    )]
    OpenDirectory { path: PathBuf, mode: u32 },
    #[error("cannot create the socket {path}. Make its directory writable for this user, or use another home")]
    Socket { path: PathBuf, source: io::Error },
    #[error(
        "`{0}` cannot be the domain of previews. Give a domain whose every subdomain leads here, in lower case, for example preview.example.com"
    )]
    PreviewDomain(String),
    #[error(
        "the router's key {path} cannot be used: {cause}. Write a secret of at least 32 bytes into it, or remove it"
    )]
    RouterKey { path: PathBuf, cause: String },
    #[error("the system gives no random numbers. Check that /dev/urandom and getrandom(2) work")]
    Random(#[source] getrandom::Error),
}

/// `sun_path` without its terminating NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Bound listeners; nobody is answered before [`Server::serve`].
pub struct Server {
    pub(crate) tcp: Option<Entrance>,
    pub(crate) socket: UnixListener,
    pub(crate) socket_path: PathBuf,
    pub(crate) router: Router,
    pub(crate) app: App,
}

/// A TCP address that is ours, whoever answers there.
pub struct Entrance {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Arc<Certificate>>,
}

impl Entrance {
    pub async fn open(address: SocketAddr, tls: Option<&Tls>) -> Result<Self, BindError> {
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(BindError::NeedsTls(address));
        }
        let tls = tls.cloned().map(Certificate::open).transpose()?.map(Arc::new);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse(address),
            _ => BindError::Tcp { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, tls })
    }

    /// With the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Server {
    pub async fn bind(engine: Engine, options: Options) -> Result<Self, BindError> {
        let tcp = match options.tcp {
            Some(address) => Some(Entrance::open(address, options.tls.as_ref()).await?),
            None => None,
        };
        Self::bind_on(engine, tcp, options)
    }

    /// At an address that is ours already; what the options say about it is not looked at.
    pub fn bind_on(engine: Engine, tcp: Option<Entrance>, options: Options) -> Result<Self, BindError> {
        if let Some(tcp) = &tcp {
            engine.keep_away(tcp.address);
        }
        let socket = socket(&options.socket)?;
        let site = tcp.as_ref().map_or_else(Site::nowhere, |tcp| Site::new(tcp.address, tcp.tls.is_some()));
        let site = if options.shared { site.shared() } else { site };
        let site = match options.preview_domain {
            Some(domain) => site.with_previews(&domain).ok_or(BindError::PreviewDomain(domain))?,
            None => site,
        };
        let app = App::new(engine, site, options.version)?;
        Ok(Self { tcp, socket, socket_path: options.socket, router: routes::router(&app), app })
    }

    /// With the real port when 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|tcp| tcp.address)
    }

    /// A link that makes one browser an admin, once, within ten minutes; none without TCP.
    pub fn sign_in_link(&self) -> Result<Option<String>, BindError> {
        self.app.sign_in_link().map_err(BindError::Random)
    }
}

impl App {
    pub(crate) fn new(engine: Engine, site: Site, version: &'static str) -> Result<Self, BindError> {
        let closing = CancellationToken::new();
        Ok(Self(Arc::new(Surface {
            sign_in: SignIn::new(),
            meters: Meters::new(&engine).map_err(BindError::Random)?,
            router_key: router::Key::of(&engine)?,
            preview_codes: Codes::default(),
            engine,
            site,
            version,
            mcp: mcp::Endpoint::new(version, closing.clone()),
            closing,
            sockets: TaskTracker::new(),
        })))
    }

    /// The code is in the fragment, which browsers never send.
    pub(crate) fn sign_in_link(&self) -> Result<Option<String>, getrandom::Error> {
        let Some(url) = self.site.sign_in_url() else { return Ok(None) };
        Ok(Some(format!("{url}/#code={}", self.sign_in.make()?)))
    }
}

/// The home's lock says that no other server runs here, so a socket that exists is left over.
fn socket(path: &Path) -> Result<UnixListener, BindError> {
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(BindError::SocketTooLong { path: path.to_owned(), length });
    }
    let failed = |source| BindError::Socket { path: path.to_owned(), source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let mode = fs::metadata(directory).map_err(failed)?.permissions().mode() & 0o7777;
    // In a sticky directory others cannot replace what is ours.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(BindError::OpenDirectory { path: directory.to_owned(), mode });
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(failed)?,
        Ok(_) => return Err(BindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Whoever got in between these two lines meets the check of the peer's uid.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
