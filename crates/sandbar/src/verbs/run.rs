//! `run`: one command in a fresh sandbox, with a private server inside this process.

use sandbar_api::{CreateSandbox, NetworkPolicy};

use crate::{
    args::{CommandOptions, Workspace, rule, workspace},
    context::Context,
    exit::Failure,
    private::Private,
    sizes::Sizes,
    spinner, terminal,
    terminal::Signals,
    up,
    verbs::{
        process::{request, start_and_attach},
        sandbox::{fill, source},
    },
};

const WORKERS: usize = 2;

/// Run one command in a fresh sandbox that is gone afterwards; needs no server
///
/// Standard input, output and error stream through unchanged, signals reach the command, and its exit code becomes
/// ours. Nothing of the sandbox remains, however this ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar run -- python3 -c 'print(6 * 7)'
  sandbar run -t --workspace . -- bash          a shell over a copy of this directory
  sandbar run --workspace .:rw -- make          build in this directory itself
  sandbar run --allow @github -- git clone https://github.com/OWNER/REPO
  cat data.csv | sandbar run -- sort | head")]
pub(crate) struct Run {
    /// Bring a directory in as /workspace: a copy of it, or with :rw the directory itself
    #[arg(short, long, value_name = "DIR[:rw]", value_parser = workspace)]
    pub workspace: Option<Workspace>,

    /// What to make the sandbox from
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,

    /// Let it connect to this: HOST[:PORTS] [METHODS] [PATH] or @SET, as in `net allow`
    ///
    /// Nobody can be asked here: what the template asks about is denied.
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub allow: Vec<String>,

    #[command(flatten)]
    pub sizes: Sizes,

    /// Standard input is always forwarded; taken for the habit of typing -it
    #[arg(short, long, hide = true)]
    pub interactive: bool,

    #[command(flatten)]
    pub options: CommandOptions,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

pub(crate) fn run(args: Run, context: &Context) -> Result<u8, Failure> {
    up::start_log_if_asked()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(Failure::io("failed to start"))?;
    let outcome = runtime.block_on(run_here(args, context));
    // A thread may still wait for standard input; it must not keep us.
    runtime.shutdown_background();
    outcome
}

async fn run_here(args: Run, context: &Context) -> Result<u8, Failure> {
    // Before anything exists that a signal would leave behind.
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    let private = tokio::select! {
        private = spinner::during("getting ready", Private::open(context)) => private?,
        code = signals.interrupted() => return Err(Failure::Quiet(code)),
    };
    let outcome = run_in(&private, args, context, &mut signals).await;
    private.close(context.print).await;
    outcome
}

async fn run_in(private: &Private, args: Run, context: &Context, signals: &mut Signals) -> Result<u8, Failure> {
    let request = request(args.command, &args.options, !terminal::stdin_is_null())?;
    let create = CreateSandbox {
        template: args.template,
        workspace: source(args.workspace.as_ref())?,
        network: NetworkPolicy { allow: args.allow, ..NetworkPolicy::default() },
        limits: args.sizes.limits(),
        budget: args.sizes.budget(),
        ..CreateSandbox::default()
    };
    let client = &private.client;
    let make = async {
        let sandbox = client.create(&create, None).await?.sandbox;
        fill(client, &sandbox, args.workspace.as_ref(), context.print).await?;
        Ok::<_, Failure>(sandbox)
    };
    let sandbox = tokio::select! {
        sandbox = spinner::during("creating the sandbox", make) => sandbox?,
        code = signals.interrupted() => return Err(Failure::Quiet(code)),
    };
    start_and_attach(client, sandbox.id.as_str(), &request, signals, context.print).await
}
