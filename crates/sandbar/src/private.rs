//! A server for this process alone, as `sandbar run` needs it: the same engine and routes over a private socket in a
//! private temporary home. Everything in it dies with us, even when we are killed.

use std::{path::Path, sync::Arc};

use futures_util::TryStreamExt as _;
use sandbar_client::{Client, SandboxQuery};
use sandbar_engine::{Config, Engine};
use sandbar_provider_local::{Lifetime, Local};
use sandbar_server::{Options, Server};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    context::{Context, socket},
    exit::{self, Failure},
    print::Printer,
    up,
};

pub(crate) struct Private {
    pub client: Client,
    engine: Engine,
    closing: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    home: TempDir,
}

impl Private {
    /// Templates are the user's; everything else is made for this one time.
    pub(crate) async fn open(context: &Context) -> Result<Self, Failure> {
        let home = temporary_home()?;
        let templates = context.home()?.join("templates");
        if templates.is_dir() {
            std::os::unix::fs::symlink(&templates, home.path().join("templates"))
                .map_err(Failure::io("failed to bring the templates into the private home"))?;
        }
        let local = local(home.path()).await?;
        let config = Config { home: home.path().to_owned(), providers: vec![Arc::new(local)] };
        let engine = Engine::open(config).await.map_err(|error| up::engine_failure(&error))?;
        let options = Options { tcp: None, tls: None, socket: socket(home.path()), version: env!("CARGO_PKG_VERSION") };
        let server = Server::bind(engine.clone(), options).await.map_err(|error| up::bind_failure(&error))?;
        let client = Client::unix(socket(home.path()))?;
        let closing = CancellationToken::new();
        let token = closing.clone();
        let serving = tokio::spawn(async move { server.serve(token).await });
        Ok(Self { client, engine, closing, serving, home })
    }

    /// Removes everything. What fails here is told, but the command's exit code stands.
    pub(crate) async fn close(self, print: Printer) {
        let Self { client, engine, closing, serving, home } = self;
        if let Err(error) = remove_sandboxes(&client).await {
            print.warn(format!("the sandbox was not removed: {}", exit::chain(&error)));
        }
        closing.cancel();
        // The command is over; a server that failed has made itself felt there.
        let _ = serving.await;
        engine.shutdown().await;
        drop((client, engine));
        let path = home.path().to_owned();
        match home.close() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound && path.exists() => {
                print.warn(format!("{} was not removed: {error}", path.display()));
            }
            _ => {}
        }
    }
}

async fn remove_sandboxes(client: &Client) -> sandbar_client::Result<()> {
    let sandboxes: Vec<_> = client.sandboxes(SandboxQuery::default()).try_collect().await?;
    for sandbox in sandboxes {
        client.delete(sandbox.id.as_str()).await?;
    }
    Ok(())
}

/// Readable by nobody else. Not in the runtime directory: that is often too small for a sandbox's files.
pub(crate) fn temporary_home() -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("sandbar-")
        .tempdir()
        .map_err(Failure::io(format!("failed to make a private home in {}", std::env::temp_dir().display())))
}

/// The local provider, whose sandboxes end with this process.
pub(crate) async fn local(home: &Path) -> Result<Local, Failure> {
    Local::open(home.join("local"), Lifetime::WithParent { home: home.to_owned() })
        .await
        .map_err(|error| up::provider_failure(&error))
}
