//! The runtime contracts of agent-sandbox, served on ports of the sandbox's loopback: sandboxd (gRPC and REST) and the
//! older HTTP API. Nothing of it exists until the server asks for it.
//!
//! Whoever is inside can call here, so everything is bounded; and nothing is done here that is not done elsewhere: commands
//! are processes behind the fence, files are the business of file workers.

mod body;
mod grpc;
mod legacy;
mod listen;
mod output;
mod place;
mod process;
mod rest;
mod run;
mod serving;
mod token;
mod words;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, TcpListener as StdListener},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{net::TcpListener, sync::OwnedSemaphorePermit};

use crate::{
    children::Forker,
    error::{Code, Fault},
    process::Process,
    protocol::ServeRequest,
    table::Table,
};
use listen::Protocol;
use serving::Serving;

#[derive(Default)]
pub(crate) struct Runtimes {
    serving: Mutex<Option<Arc<Serving>>>,
}

impl Runtimes {
    fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All that was asked for is served when it returns, or nothing is.
    pub(crate) fn serve(
        &self,
        request: ServeRequest,
        table: &Table,
        forker: &Forker,
        gate: Option<u16>,
        address: IpAddr,
    ) -> Result<(), Fault> {
        if let Some(serving) = self.serving() {
            return serving.renew(request);
        }
        if request.sandboxd.is_none() && request.legacy.is_none() {
            return Ok(());
        }
        check(&request, gate)?;
        let bind = |port| bind(address, port);
        let sandboxd =
            request.sandboxd.as_ref().map(|asked| Ok::<_, Fault>((bind(asked.grpc_port)?, bind(asked.rest_port)?)));
        let sandboxd = sandboxd.transpose()?;
        let legacy = request.legacy.as_ref().map(|asked| bind(asked.port)).transpose()?;
        let serving = Arc::new(Serving::new(request, table.beside(), forker.clone()));
        if let Some((grpc, rest)) = sandboxd {
            listen::serve(grpc, Protocol::Grpc, grpc::app(&serving)?);
            listen::serve(rest, Protocol::Http, rest::app(&serving));
        }
        if let Some(legacy) = legacy {
            listen::serve(legacy, Protocol::Http, legacy::app(&serving));
        }
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(())
    }

    /// Its processes that have something alive, with the pids of their minders.
    pub(crate) fn minded(&self) -> Vec<(i32, Arc<Process>)> {
        self.serving().map(|serving| serving.table.minded()).unwrap_or_default()
    }

    /// How many of its processes somebody waits for: whoever goes away takes theirs along.
    pub(crate) fn awaited(&self) -> usize {
        self.serving().map_or(0, |serving| serving.table.list().len())
    }

    /// Nothing is changed in files as long as this is held.
    pub(crate) async fn hold(&self) -> Result<Option<OwnedSemaphorePermit>, Fault> {
        match self.serving() {
            Some(serving) => serving.hold().await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn drain(&self) {
        if let Some(serving) = self.serving() {
            serving.drain().await;
        }
    }
}

fn check(request: &ServeRequest, gate: Option<u16>) -> Result<(), Fault> {
    let bad = |what: String| Err(Fault::new(Code::BadRequest, what));
    let sandboxd = request.sandboxd.as_ref();
    let legacy = request.legacy.as_ref();
    let asked: Vec<u32> = sandboxd
        .into_iter()
        .flat_map(|asked| [asked.grpc_port, asked.rest_port])
        .chain(legacy.map(|asked| asked.port))
        .collect();
    for port in &asked {
        if !u16::try_from(*port).is_ok_and(|port| port != 0 && Some(port) != gate) {
            return bad(format!("Nothing can be served on port {port}: choose another from 1 to 65535."));
        }
    }
    if asked.iter().collect::<BTreeSet<_>>().len() != asked.len() {
        return bad("Each runtime needs a port of its own.".into());
    }
    for root in sandboxd.map(|asked| &asked.root).into_iter().chain(legacy.map(|asked| &asked.root)) {
        if !root.starts_with('/') || root.contains('\0') || root.split('/').any(|part| part == "..") {
            return bad(format!("The root `{}` is not an absolute path without `..`.", root.escape_debug()));
        }
    }
    Ok(())
}

/// On one address: in a sandbox of the server's IPv4 alone, which is where connections from outside look first.
fn bind(address: IpAddr, port: u32) -> Result<TcpListener, Fault> {
    let number = u16::try_from(port).unwrap_or(0);
    let listener = StdListener::bind((address, number)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let message = format!(
                "Port {port} of the sandbox is taken, so the runtime of its template cannot be served there. Give the \
                 runtime another port in the template, or the program that has this one."
            );
            Fault::new(Code::WrongState, message)
        }
        _ => Fault::internal("listen for a runtime")(error),
    })
}
