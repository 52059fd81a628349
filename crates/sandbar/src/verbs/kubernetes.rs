//! `kubernetes manifests|check|key`: what an installation on a cluster needs, and whether the cluster can hold it.

mod check;
mod manifests;
mod prepare;

use crate::{
    context::Context,
    exit::{self, Failure},
    up,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Kubernetes {
    Manifests(manifests::Manifests),
    Check(check::Check),
    /// Print the public key that guests of this home's server obey
    ///
    /// For `server_keys` of the values that `manifests` takes. A home without a key is given one.
    Key,
    /// Make the home ready before the server starts in a pod
    #[command(hide = true)]
    Prepare(prepare::Prepare),
    /// Listen, try to reach others and tell; what `check` runs in pods
    #[command(hide = true)]
    Probe,
}

pub(crate) async fn kubernetes(verb: Kubernetes, context: &Context) -> Result<u8, Failure> {
    match verb {
        Kubernetes::Manifests(args) => manifests::manifests(&args, context).await,
        Kubernetes::Check(args) => check::check(args, context).await,
        Kubernetes::Key => key(context),
        Kubernetes::Prepare(args) => prepare::prepare(&args, context),
        Kubernetes::Probe => check::probe(context).await,
    }
}

fn key(context: &Context) -> Result<u8, Failure> {
    let home = context.home()?;
    up::make_home(&home)?;
    let key = sandbar_provider_kubernetes::manifests::key_shown(&up::kubernetes::identity(&home)?.public_key());
    match context.print.json {
        true => context.print.json(&serde_json::json!({ "key": key }))?,
        false => context.print.line(key)?,
    }
    Ok(exit::OK)
}
