//! `sandbar up`: wires provider, engine and server together and runs them until a signal.

mod database;
pub(crate) mod kubernetes;
mod pod;

use std::{
    fs,
    io::IsTerminal as _,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbar_api::HumanDuration;
use sandbar_engine::{Config, Engine, OpenError, StoreAt};
use sandbar_provider::Provider;
use sandbar_provider_local::{Lifetime, Local};
use sandbar_server::{BindError, HealthListener, Options, Server, Tls};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use self::database::Led;
use crate::{
    context::{Context, socket},
    exit::{self, Failure},
    print::{Printer, Style},
    text::inert,
    threads,
};

const LOG: &str = "SANDBAR_LOG";

/// Start the server
///
/// It listens on a Unix socket in the home directory, for its owner, and on TCP, where every call needs a token.
/// Sandboxes outlive it: after a restart, even after `kill -9`, it finds them again with everything they wrote.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar up
  sandbar up --listen 0.0.0.0:7227 --tls-cert cert.pem --tls-key key.pem
  sandbar up --provider kubernetes
  SANDBAR_LOG=debug sandbar up --log-format json")]
pub(crate) struct Up {
    /// Where to listen; an address that is not loopback needs TLS
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7227")]
    pub listen: SocketAddr,

    /// The certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Previews are at SANDBOX-PORT.DOMAIN; every name below it must lead here [default: localhost]
    #[arg(long, value_name = "DOMAIN")]
    pub preview_domain: Option<String>,

    /// What makes sandboxes; the first makes those of templates that name none
    #[arg(long = "provider", value_name = "PROVIDER", value_enum, default_value = "local")]
    pub providers: Vec<ProviderName>,

    /// Which cluster, and what is decided about it [default: kubernetes.toml in the home, if there is one]
    #[arg(long, value_name = "FILE")]
    pub kubernetes_config: Option<PathBuf>,

    /// PostgreSQL instead of a database in the home. Servers that share one stand in for each other
    #[arg(long, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    pub database: Option<String>,

    /// Where the other servers of the same database reach this one [default: where it listens]
    #[arg(long, value_name = "HOST:PORT", requires = "database")]
    pub advertise: Option<String>,

    /// Where `/healthz` tells without TLS whether this very server lives, also while it stands by [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    pub health_listen: Option<SocketAddr>,

    /// The key that secrets are sealed with, 32 bytes; for a home that has none yet
    #[arg(long, value_name = "FILE")]
    pub secret_key: Option<PathBuf>,

    /// Start although the database is missing, older than the files or of another instance; quarantines what it does not know
    #[arg(long)]
    pub adopt: bool,

    /// Remove what has been in quarantine for this long, for example 30d [default: never]
    #[arg(long, value_name = "DURATION")]
    pub remove_quarantined_after: Option<HumanDuration>,

    /// How to log to standard error; SANDBAR_LOG chooses what [default: info]
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderName {
    /// This machine's kernel
    Local,
    /// A cluster, through agent-sandbox
    Kubernetes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

pub(crate) fn up(args: &Up, context: &Context) -> Result<u8, Failure> {
    start_log(args.log_format)?;
    // Secrets pass through this memory, so it goes into no core file. One byte: piped to a program, 0 would be no limit.
    let most = Some(getrlimit(Resource::Core).maximum.unwrap_or(1).min(1));
    setrlimit(Resource::Core, Rlimit { current: most, maximum: most })
        .map_err(|error| Failure::io("failed to forbid core files")(error.into()))?;
    raise_descriptors();
    sandbar_provider_local::spare_server();
    let runtime = threads::runtime()?;
    let outcome = runtime.block_on(serve(args, context));
    runtime.shutdown_background();
    outcome
}

/// Every connection of every sandbox takes descriptors, and the usual soft limit is meant for programs that use `select`.
/// The gateway measures itself by what it finds, so this comes before it.
pub(crate) fn raise_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
        tracing::warn!(%error, "the limit of open files stays as it is, and sandboxes have fewer connections");
    }
}

async fn serve(args: &Up, context: &Context) -> Result<u8, Failure> {
    // First of all: a signal during a slow start must end us properly too.
    let closing = end_on_signal()?;
    // Before it waits for its turn to lead.
    if args.database.is_some() && args.providers.contains(&ProviderName::Local) {
        let what = "sandboxes of the provider `local` are on this machine alone, where other servers cannot find them";
        return Err(Failure::usage(what).hint("Give --provider kubernetes with --database, or leave one of them out."));
    }
    let home = context.home()?;
    make_home(&home)?;
    if let Some(key) = &args.secret_key {
        Engine::adopt_key(&home, key).map_err(|error| engine_failure(&error))?;
    }
    if let Some(address) = args.health_listen {
        let listener = HealthListener::open(address).await.map_err(|error| bind_failure(&error))?;
        tokio::spawn(listener.serve(env!("CARGO_PKG_VERSION")));
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls { certificate: certificate.clone(), key: key.clone() }),
        _ => None,
    };
    let secure = tls.is_some();
    let led = match &args.database {
        Some(url) => match database::lead(args, url, tls.as_ref(), context.print, closing.clone()).await? {
            Some(led) => Some(led),
            None => return Ok(exit::OK),
        },
        None => None,
    };
    let (entrance, store) = match led {
        Some(Led { entrance, lead }) => {
            database::end_when_lost(lead.clone());
            (Some(entrance), StoreAt::Postgres(lead))
        }
        None => (None, StoreAt::Home),
    };
    let shared = entrance.is_some();
    let config = Config {
        home: home.clone(),
        providers: providers(args, &home).await?,
        asks: true,
        adopt: args.adopt,
        remove_quarantined_after: args.remove_quarantined_after.map(|age| age.0),
    };
    let engine = Engine::open_on(config, store).await.map_err(|error| engine_failure(&error))?;
    let options = Options {
        tcp: Some(args.listen),
        tls,
        shared,
        socket: socket(&home),
        version: env!("CARGO_PKG_VERSION"),
        preview_domain: args.preview_domain.clone(),
    };
    let bound = match entrance {
        Some(entrance) => Server::bind_on(engine.clone(), Some(entrance), options),
        None => Server::bind(engine.clone(), options).await,
    };
    let server = match bound {
        Ok(server) => server,
        Err(error) => {
            engine.shutdown().await;
            return Err(bind_failure(&error));
        }
    };
    match announce(&server, &home, secure, context.print) {
        // A closed standard output is no reason not to serve.
        Ok(()) | Err(Failure::Quiet(_)) => {}
        Err(failure) => return Err(failure),
    }
    let served = server.serve(closing).await;
    engine.shutdown().await;
    served.map_err(Failure::io("the server failed"))?;
    context.print.say("stopped; sandboxes and what runs in them go on, `sandbar up` finds them again");
    Ok(exit::OK)
}

async fn providers(args: &Up, home: &Path) -> Result<Vec<Arc<dyn Provider>>, Failure> {
    let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
    for name in &args.providers {
        providers.push(match name {
            ProviderName::Local => {
                let local = Local::open(home.join("local"), Lifetime::Outlives).await;
                Arc::new(local.map_err(|error| provider_failure(&error))?)
            }
            ProviderName::Kubernetes => Arc::new(kubernetes::open(home, args.kubernetes_config.as_deref()).await?),
        });
    }
    Ok(providers)
}

fn announce(server: &Server, home: &Path, secure: bool, print: Printer) -> Result<(), Failure> {
    let scheme = if secure { "https" } else { "http" };
    let url = server.tcp_address().map(|address| format!("{scheme}://{address}"));
    let socket = socket(home);
    // What a pod prints, everybody reads who may look at its log.
    let link = if pod::is_ours() { None } else { server.sign_in_link().map_err(|error| bind_failure(&error))? };
    if print.json {
        return print.json(&serde_json::json!({
            "url": url, "socket": socket.display().to_string(), "home": home.display().to_string(), "sign_in": link,
        }));
    }
    let label = |text: &str| print.mark(&format!("{text:<9}"), Style::Bold);
    let url = url.unwrap_or_else(|| "no TCP".into());
    print.line(format!("{} {url} and {}", label("listening"), inert(&socket.display().to_string())))?;
    print.line(format!("{} {}", label("home"), inert(&home.display().to_string())))?;
    let link = match link {
        Some(link) => format!("{link} (works once)"),
        None => "by the link that `sandbar open` prints".to_owned(),
    };
    print.line(format!("{} {link}", label("sign in")))
}

/// The first SIGINT or SIGTERM ends gracefully, the second at once.
fn end_on_signal() -> Result<CancellationToken, Failure> {
    let listen = |kind| signal(kind).map_err(Failure::io("failed to listen for signals"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let closing = CancellationToken::new();
    let token = closing.clone();
    tokio::spawn(async move {
        loop {
            let code = tokio::select! { _ = interrupt.recv() => 130, _ = terminate.recv() => 143 };
            if token.is_cancelled() {
                std::process::exit(code);
            }
            tracing::info!("shutting down");
            token.cancel();
        }
    });
    Ok(closing)
}

/// The engine judges and locks it, but the provider needs it first.
pub(crate) fn make_home(home: &Path) -> Result<(), Failure> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(|error| {
        Failure::new(exit::FAILED, format!("the home {} cannot be made: {error}", home.display()))
            .hint("Give a directory of your own with --home DIR.")
    })
}

/// Quiet unless asked, for verbs that have a server inside.
pub(crate) fn start_log_if_asked() -> Result<(), Failure> {
    if std::env::var_os(LOG).is_some_and(|value| !value.is_empty()) { start_log(LogFormat::Text) } else { Ok(()) }
}

fn start_log(format: LogFormat) -> Result<(), Failure> {
    let wanted = std::env::var(LOG).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "info".into());
    // A plain level is about us; the libraries below would drown it. To rmcp a client that hangs up is an error.
    let plain = !wanted.contains(['=', ',']);
    let wanted = if plain { format!("warn,rmcp=off,sandbar={wanted}") } else { wanted };
    let filter = EnvFilter::try_new(&wanted).map_err(|error| {
        Failure::usage(format!("{LOG} is not a log filter: {error}")).hint("Use for example `debug`.")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Telling on standard error that it cannot be written to would panic, and a full disk must not end requests.
        .log_internal_errors(false);
    let outcome = match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    outcome.map_err(|error| Failure::new(exit::FAILED, error.to_string()))
}

pub(crate) fn provider_failure(error: &sandbar_provider::Error) -> Failure {
    use sandbar_provider::Error::{BadSpec, BadTemplate, Cluster, NoRoom, NotEnforceable};
    let failure = Failure::new(exit::FAILED, exit::chain(error));
    match error {
        NotEnforceable { fix, .. } => {
            Failure::new(exit::NOT_ENFORCEABLE, error.to_string()).hint(format!("{fix} `sandbar doctor` shows more."))
        }
        BadSpec { fix, .. } | BadTemplate { fix, .. } | Cluster { fix, .. } | NoRoom { fix, .. } => failure.hint(fix),
        _ => failure.hint("`sandbar doctor` says what this host can do."),
    }
}

pub(crate) fn engine_failure(error: &OpenError) -> Failure {
    let code = if matches!(error, OpenError::HomeInUse { .. }) { exit::CONFLICT } else { exit::FAILED };
    Failure::new(code, exit::chain(error)).hint(error.fix())
}

/// Its texts say what failed and then what to do; the cause belongs to the first.
pub(crate) fn bind_failure(error: &BindError) -> Failure {
    let code = match error {
        BindError::NeedsTls(_) | BindError::PreviewDomain(_) => exit::USAGE,
        BindError::AddressInUse(_) | BindError::HealthInUse(_) => exit::CONFLICT,
        _ => exit::FAILED,
    };
    let text = error.to_string();
    let (what, fix) = text.split_once(". ").unwrap_or((&text, ""));
    let what = match std::error::Error::source(error) {
        Some(source) => format!("{what}: {}", exit::chain(source)),
        None => what.to_owned(),
    };
    let failure = Failure::new(code, what);
    if fix.is_empty() { failure } else { failure.hint(format!("{fix}.")) }
}
