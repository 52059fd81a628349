//! The binary: command line, wiring of server, engine and provider, nothing else.

mod amount;
mod args;
mod attach;
mod context;
mod copy;
mod dispatch;
mod exit;
mod hidden;
mod outlet;
mod print;
mod private;
mod running;
mod sizes;
mod spinner;
mod table;
mod terminal;
mod text;
mod threads;
mod up;
mod verbs;
mod visit;

fn main() -> std::process::ExitCode {
    sandbar_engine::abort_on_panic();
    // The launcher must stay single-threaded, so nothing may happen before it.
    if std::env::args_os().next().is_some_and(|name| name == sandbar_provider_local::LAUNCHER_NAME) {
        sandbar_provider_local::launcher::main()
    }
    let mut arguments = std::env::args_os().skip(1);
    // Likewise the guest of a pod, which nobody types: it is no verb of the command line.
    if arguments.next().is_some_and(|verb| verb == "guest") {
        sandbar_provider_local::pod::main(arguments)
    }
    dispatch::main()
}
