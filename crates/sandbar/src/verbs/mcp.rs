//! `mcp`: a session's tools on standard input and output, for agents that start their tools as programs.

mod bridge;
mod call;
mod config;
mod lines;
mod message;

use std::time::Duration;

use sandbar_client::{Client, Error, McpEra, Patience, WorkspaceAsk};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{sleep, timeout},
};

use self::bridge::Bridge;
use crate::{
    context::Context,
    exit::{self, Failure},
    print::written,
};

/// Give an agent the tools of a session's sandbox
///
/// Speaks MCP on standard input and output, for agents that start their tools as programs: Claude, Codex, opencode and
/// others. The tools are those that the server has at /v1/sessions/ID/mcp. It ends when its input does, and whatever a
/// tool still runs then is killed; the sandbox stays. A restart of the server in between is not noticed, but for calls
/// that run at that time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar mcp web                       the tools of a session or sandbox that is there
  sandbar mcp web --create              makes it, if it is not there
  sandbar mcp --print-config            what to paste into an agent's configuration
  sandbar mcp web --print-config=codex  the same for one agent and another session")]
pub(crate) struct Mcp {
    /// The session's id or name, or the id or name of a sandbox of it
    #[arg(value_name = "ID", required_unless_present = "print_config")]
    session: Option<String>,

    /// Make the session with its sandbox, if there is no session of this name; that of a sandbox is none
    #[arg(long)]
    create: bool,

    /// Make it as this agent's workspaces are configured
    #[arg(long, value_name = "NAME", requires = "create")]
    agent: Option<String>,

    /// Print what to paste into an agent's configuration, and end
    ///
    /// For all that are known, or for one. Without an ID it is for a session named like this directory, which is made when
    /// first used (not with --server: an agent's token makes none).
    #[arg(long, value_name = "AGENT", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    print_config: Option<config::Agent>,
}

/// Agents get no answer for longer than this from a server that is away.
const PATIENCE: Patience =
    Patience { first: Duration::from_millis(50), longest: Duration::from_millis(500), total: Duration::from_secs(10) };
/// For what is in flight when the input ends. Clients wait for two seconds before they use force.
const GRACE: Duration = Duration::from_secs(1);
const FLUSH: Duration = Duration::from_millis(300);
/// Asked before the first message, so that what is wrong is said where people look.
const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

/// The session whose tools these are.
#[derive(Clone)]
struct Place {
    client: Client,
    session: String,
    create: bool,
    agent: Option<String>,
}

impl Place {
    /// Makes it, if that was asked for.
    async fn prepare(&self) -> Result<(), Error> {
        if self.create {
            let ask = WorkspaceAsk { create: true, agent: self.agent.clone(), wait: None };
            self.client.workspace(&self.session, &ask).await?;
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), Failure> {
        self.prepare().await?;
        let message = serde_json::from_str(DISCOVER).unwrap_or_default();
        let era = McpEra::stateless(&message).unwrap_or(McpEra::Handshake(None));
        self.client.mcp_send(&self.session, DISCOVER, &era).await?;
        Ok(())
    }
}

pub(crate) async fn mcp(args: Mcp, context: &Context) -> Result<u8, Failure> {
    if let Some(agent) = args.print_config {
        return config::print(agent, &args, context).await;
    }
    let session = args.session.unwrap_or_default();
    let client = context.client()?.with_patience(PATIENCE);
    let place = Place { client, session, create: args.create, agent: args.agent };
    place.check().await?;
    serve(place, context).await
}

async fn serve(place: Place, context: &Context) -> Result<u8, Failure> {
    let listen = |kind| signal(kind).map_err(Failure::io("failed to listen for signals"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    // A client that talks faster than the server answers is held up.
    let (to_bridge, said) = mpsc::channel(16);
    let (out, answers) = mpsc::channel(64);
    let reader = tokio::spawn(lines::read(tokio::io::stdin(), to_bridge));
    let mut writer = tokio::spawn(lines::write(answers, tokio::io::stdout()));
    let mut bridge = Bridge::new(place, out, context.print);
    let late = async {
        let read = reader.await;
        sleep(GRACE).await;
        read
    };
    let outcome = tokio::select! {
        () = bridge.serve(said) => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        read = late => match read {
            Ok(Err(error)) => Err(Failure::io("failed to read standard input")(error)),
            _ => Ok(()),
        },
        ended = &mut writer => match ended {
            Ok(outcome) => written(outcome),
            Err(_) => Ok(()),
        },
    };
    bridge.leave().await;
    if !writer.is_finished() {
        // Whoever does not read has gone, or will not be waited for.
        let _unread = timeout(FLUSH, writer).await;
    }
    outcome.map(|()| exit::OK)
}
