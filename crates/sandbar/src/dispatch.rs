//! From the command line to the verb, and from its outcome to the exit code.

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _};

use crate::{
    args::{Args, Verb},
    context::Context,
    exit::{self, Failure},
    terminal, up, verbs,
};

pub(crate) fn main() -> ExitCode {
    let command = Args::command().color(color_of(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned())));
    let args = match command.try_get_matches().and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => {
            // Help that nobody reads to the end is no failure.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    terminal::restore_on_panic();
    let context = Context::new(&args.global);
    let code = match perform(args.verb, &context) {
        Ok(code) => code,
        Err(failure) => {
            context.print.failure(&failure);
            failure.code()
        }
    };
    ExitCode::from(code)
}

fn perform(verb: Verb, context: &Context) -> Result<u8, Failure> {
    use verbs::{
        approval, attach, budget, cp, doctor, events, forward, inspect, kubernetes, life, look, mcp, net, open, pool,
        preview, process, profile, quarantine, replay, run, sandbox, secret, session, snapshot, template, token, usage,
        webhook,
    };
    match verb {
        Verb::Up(args) => up::up(&args, context),
        Verb::Run(args) => run::run(args, context).map_err(Failure::beside_a_command),
        Verb::Completions(args) => args.print(),
        Verb::Create(args) => wait_for(sandbox::create(args, context)),
        Verb::Ls(args) => wait_for(sandbox::ls(args, context)),
        Verb::Inspect(args) => wait_for(inspect::inspect(&args, context)),
        Verb::Stop(args) => wait_for(life::stop(&args, context)),
        Verb::Start(args) => wait_for(life::start(&args, context)),
        Verb::Pause(args) => wait_for(life::pause(&args, context)),
        Verb::Resume(args) => wait_for(life::resume(&args, context)),
        Verb::Snapshot(args) => wait_for(snapshot::snapshot(args, context)),
        Verb::Snapshots(args) => wait_for(snapshot::snapshots(args, context)),
        Verb::Fork(args) => wait_for(snapshot::fork(args, context)),
        Verb::Rm(args) => wait_for(sandbox::rm(&args, context)),
        Verb::Exec(args) => wait_for(process::exec(args, context)).map_err(Failure::beside_a_command),
        Verb::Attach(args) => wait_for(attach::attach(&args, context)).map_err(Failure::beside_a_command),
        Verb::Ps(args) => wait_for(process::ps(&args, context)),
        Verb::Logs(args) => wait_for(process::logs(&args, context)),
        Verb::Screen(args) => wait_for(look::screen(&args, context)),
        Verb::Transcript(args) => wait_for(look::transcript(&args, context)),
        Verb::Replay(args) => wait_for(replay::replay(&args, context)),
        Verb::Kill(args) => wait_for(process::kill(&args, context)),
        Verb::Cp(args) => wait_for(cp::cp(&args, context)),
        Verb::Forward(args) => wait_for(forward::forward(&args, context)),
        Verb::Preview(args) => wait_for(preview::preview(&args, context)),
        Verb::Open(args) => wait_for(open::open(&args, context)),
        Verb::Mcp(args) => wait_for(mcp::mcp(args, context)),
        Verb::Session(args) => wait_for(session::session(args, context)),
        Verb::Net(args) => wait_for(net::net(args, context)),
        Verb::Secret(args) => wait_for(secret::secret(args, context)),
        Verb::Approvals(args) => wait_for(approval::approvals(args, context)),
        Verb::Approve(args) => wait_for(approval::approve(args, context)),
        Verb::Deny(args) => wait_for(approval::deny(args, context)),
        Verb::Answer(args) => wait_for(approval::answer(args, context)),
        Verb::Budget(args) => wait_for(budget::budget(args, context)),
        Verb::Model(args) => wait_for(budget::model(args, context)),
        Verb::Usage(args) => wait_for(usage::usage(args, context)),
        Verb::Events(args) => wait_for(events::events(&args, context)),
        Verb::Template(args) => wait_for(template::template(&args, context)),
        Verb::Profile(args) => profile::profile(&args, context),
        Verb::Pool(args) => wait_for(pool::pool(&args, context)),
        Verb::Token(args) => wait_for(token::token(args, context)),
        Verb::Webhook(args) => wait_for(webhook::webhook(args, context)),
        Verb::Quarantine(args) => wait_for(quarantine::quarantine(args, context)),
        Verb::Kubernetes(args) => wait_for(kubernetes::kubernetes(args, context)),
        Verb::Doctor(_) => wait_for(doctor::doctor(context)),
    }
}

fn wait_for(verb: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::io("failed to start"))?;
    let outcome = runtime.block_on(verb);
    // A thread may still wait for standard input; it must not keep us.
    runtime.shutdown_background();
    outcome
}

/// Help and usage errors are printed before options are known, so this one is looked up by hand.
fn color_of(args: impl Iterator<Item = String>) -> ColorChoice {
    let args: Vec<String> = args.take_while(|arg| arg != "--").collect();
    let value = args.iter().enumerate().find_map(|(at, arg)| match arg.as_str() {
        "--color" => args.get(at + 1).map(String::as_str),
        arg => arg.strip_prefix("--color="),
    });
    match value {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_known_before_parsing() {
        let of = |line: &str| color_of(line.split(' ').map(Into::into));
        assert_eq!(of("sandbar --color never ls"), ColorChoice::Never);
        assert_eq!(of("sandbar ls --color=always"), ColorChoice::Always);
        assert_eq!(of("sandbar run -- x --color=always"), ColorChoice::Auto);
    }
}
