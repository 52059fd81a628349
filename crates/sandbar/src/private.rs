//! A server for this process alone, as `sandbar run` needs it: the same engine and routes over a private socket in a
//! private temporary home. Everything in it dies with us, even when we are killed.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::TryStreamExt as _;
use sandbar_client::{Client, SandboxQuery};
use sandbar_engine::{Config, Engine};
use sandbar_provider_local::{Lifetime, Local};
use sandbar_server::{Options, Server};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    context::{Context, socket},
    exit::{self, Failure},
    print::Printer,
    up,
};

/// What of the user's home holds here too.
const THEIRS: [&str; 3] = ["templates", "sets.toml", "gateway.toml"];

pub(crate) struct Private {
    pub client: Client,
    engine: Engine,
    closing: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    local: Local,
}

impl Private {
    /// Templates and what the gateway is configured with are the user's; everything else is made for this one time.
    pub(crate) async fn open(context: &Context) -> Result<Self, Failure> {
        let (local, home) = local().await?;
        // Whoever has no home has none of these either.
        let theirs = context.home().ok();
        if let Some(theirs) = &theirs {
            for name in THEIRS.into_iter().filter(|name| theirs.join(name).exists()) {
                std::os::unix::fs::symlink(theirs.join(name), home.join(name))
                    .map_err(Failure::io(format!("failed to bring {name} into the private home")))?;
            }
        }
        up::raise_descriptors();
        sandbar_provider_local::spare_server();
        let config =
            Config { home: home.clone(), providers: vec![Arc::new(local.clone())], asks: false, ..Config::default() };
        let engine = Engine::open(config)
            .await
            .map_err(|error| renamed(up::engine_failure(&error), &home, theirs.as_deref().unwrap_or(&home)))?;
        let version = env!("CARGO_PKG_VERSION");
        let options =
            Options { tcp: None, tls: None, socket: socket(&home), version, preview_domain: None, shared: false };
        let server = Server::bind(engine.clone(), options).await.map_err(|error| up::bind_failure(&error))?;
        let client = Client::unix(socket(&home))?;
        let closing = CancellationToken::new();
        let token = closing.clone();
        let serving = tokio::spawn(async move { server.serve(token).await });
        Ok(Self { client, engine, closing, serving, local })
    }

    /// Removes everything. What fails here is told, but the command's exit code stands.
    pub(crate) async fn close(self, print: Printer) {
        let Self { client, engine, closing, serving, local } = self;
        if let Err(error) = remove_sandboxes(&client).await {
            print.warn(format!("the sandbox was not removed: {}", exit::chain(&error)));
        }
        closing.cancel();
        // The command is over; a server that failed has made itself felt there.
        let _ = serving.await;
        engine.shutdown().await;
        if let Err(error) = local.close().await {
            print.warn(format!("the private home was not removed: {}", exit::chain(&error)));
        }
    }
}

/// A mistake is in the user's file, not at the place it was linked to.
fn renamed(mut failure: Failure, private: &Path, theirs: &Path) -> Failure {
    if let Failure::Told { what, .. } = &mut failure {
        *what = what.replace(&private.display().to_string(), &theirs.display().to_string());
    }
    failure
}

async fn remove_sandboxes(client: &Client) -> sandbar_client::Result<()> {
    let sandboxes: Vec<_> = client.sandboxes(SandboxQuery::default()).try_collect().await?;
    for sandbox in sandboxes {
        client.delete(sandbox.id.as_str()).await?;
    }
    Ok(())
}

/// The local provider in a private home, whose launcher removes both when this process ends, however it ends.
pub(crate) async fn local() -> Result<(Local, PathBuf), Failure> {
    // Not in the runtime directory: that is often too small for a sandbox's files.
    let home = tempfile::Builder::new()
        .prefix("sandbar-run-")
        .tempdir()
        .map_err(Failure::io(format!("failed to make a private home in {}", std::env::temp_dir().display())))?;
    let lifetime = Lifetime::WithParent { home: home.path().to_owned() };
    let local = Local::open(home.path().join("local"), lifetime).await.map_err(|error| up::provider_failure(&error))?;
    // Two removers would disturb each other.
    Ok((local, home.keep()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_where_the_user_made_them() {
        let failure = Failure::new(exit::FAILED, "/tmp/p/sets.toml:1: no");
        let Failure::Told { what, .. } = renamed(failure, Path::new("/tmp/p"), Path::new("/home/u/s")) else {
            panic!("it is quiet")
        };
        assert_eq!(what, "/home/u/s/sets.toml:1: no");
    }
}
