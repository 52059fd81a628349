//! The command line as people type it, and its help pages as checked in.

use clap::{CommandFactory as _, Parser as _};

use super::*;

fn parse(line: &str) -> Result<Args, clap::Error> {
    Args::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn commands_keep_their_own_options() -> Result<(), clap::Error> {
    for line in ["sandbar exec -it box ls -l --json", "sandbar exec -i -t box -- ls -l --json"] {
        let Verb::Exec(exec) = parse(line)?.verb else { panic!("{line}") };
        assert_eq!((exec.sandbox.as_str(), exec.command.join(" ").as_str()), ("box", "ls -l --json"), "{line}");
        assert!(exec.options.tty && exec.interactive);
    }
    for line in ["sandbar run -t -e A=b=c ls -l -t", "sandbar run -t --env A=b=c -- ls -l -t"] {
        let Verb::Run(run) = parse(line)?.verb else { panic!("{line}") };
        assert_eq!(run.command, ["ls", "-l", "-t"], "{line}");
        assert_eq!(run.options.env, [("A".to_owned(), "b=c".to_owned())]);
    }
    Ok(())
}

#[test]
fn globals_are_taken_before_and_after_the_verb() -> Result<(), clap::Error> {
    for line in ["sandbar --json --home /x ls", "sandbar ls --json --home /x"] {
        let args = parse(line)?;
        assert!(args.global.json && args.global.home == Some("/x".into()), "{line}");
    }
    Ok(())
}

#[test]
fn bad_usage_is_refused() {
    for line in [
        "sandbar run",
        "sandbar exec box",
        "sandbar exec",
        "sandbar create --ttl 5",
        "sandbar create --label nope",
        "sandbar create --workspace :rw",
        "sandbar run --timeout soon -- ls",
        "sandbar run -e =x -- ls",
        "sandbar run -e SURELY_NOT_SET_ANYWHERE -- ls",
        "sandbar up --listen nowhere",
        "sandbar up --tls-cert c",
        "sandbar ls --state sleeping",
        "sandbar token create --name x --role king",
        "sandbar token create --token x",
        "sandbar token router",
        "sandbar preview web",
        "sandbar preview web 0",
        "sandbar preview web 65536",
        "sandbar rm",
        "sandbar pause",
        "sandbar snapshot",
        "sandbar snapshots rm",
        "sandbar fork box -n 0",
        "sandbar fork box -n 101",
        "sandbar fork box -l nope",
        "sandbar create --from x --template y",
        "sandbar create --from x --workspace .",
        "sandbar create --from x -w .:rw",
        "sandbar pool set default",
        "sandbar pool set default 1001",
        "sandbar pool set default -1",
        "sandbar template check",
        "sandbar session",
        "sandbar session new -d",
        "sandbar session new bash",
        "sandbar session new --label nope",
        "sandbar session new --restart always",
        "sandbar session new --restart never -- bash",
        "sandbar session restart",
        "sandbar session restart a b",
        "sandbar exec --restart always box ls",
        "sandbar session show",
        "sandbar session attach",
        "sandbar session attach a b c",
        "sandbar screen",
        "sandbar transcript a -i",
        "sandbar replay a --speed 0",
        "sandbar replay a --speed 2 --export x.cast",
        "sandbar session rm",
        "sandbar create --allow https://a.example",
        "sandbar create --deny @No",
        "sandbar run --ask a.example -- ls",
        "sandbar run --secret A -- ls",
        "sandbar net allow agent",
        "sandbar net allow agent a.example/path",
        "sandbar net rm agent",
        "sandbar net log",
        "sandbar secret set A",
        "sandbar secret set A --host a.example --file f --keep-value",
        "sandbar secret set A s3cret --host a.example",
        "sandbar secret grant A",
        "sandbar approvals --all --watch",
        "sandbar approve",
        "sandbar approvals apr-x --watch",
        "sandbar answer",
        "sandbar answer apr-x a b",
        "sandbar budget set agent",
        "sandbar budget set agent --tokens 2m",
        "sandbar budget set agent --tokens 1 --none",
        "sandbar budget set --tokens 1",
        "sandbar budget set agent --usd -1",
        "sandbar model set agent",
        "sandbar usage --by hour",
        "sandbar usage --from yesterday",
        "sandbar token create --name x --role agent",
        "sandbar webhook add",
        "sandbar webhook add https://a.example --kind",
        "sandbar webhook rm",
        "sandbar webhook test",
        "sandbar quarantine adopt",
        "sandbar quarantine adopt a b",
        "sandbar quarantine rm",
        "sandbar up --remove-quarantined-after soon",
        "sandbar --color blue ls",
        "sandbar frobnicate",
    ] {
        assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(i32::from(exit::USAGE)), "{line}");
    }
}

#[test]
fn what_the_gate_takes() {
    for line in [
        "sandbar create --allow @python --allow *.example.org:443,8443 --ask * --deny gist.github.com --secret A --secret B",
        "sandbar create --parent agent",
        "sandbar run --allow api.github.com --allow @github -- git --version",
        "sandbar session new --name x -l a=b --allow @python --secret A --parent agent -d -- bash -l -d",
        "sandbar session new",
        "sandbar session ls -aq -l a=b",
        "sandbar session attach agent prc-x",
        "sandbar screen agent prc-x --ansi",
        "sandbar transcript agent --grep x -i --from 1 --to 2",
        "sandbar replay agent --speed 0.5 --idle 2s",
        "sandbar replay agent --export x.cast",
        "sandbar session rm -f a b",
        "sandbar net deny agent a.example b.example",
        "sandbar net log -f agent --from 12",
        "sandbar net sets --json",
        "sandbar secret set A --host a.example --host b.example --as basic:x --file f",
        "sandbar secret set A --host a.example --keep-value",
        "sandbar approvals -w --sandbox agent",
        "sandbar approve apr-x apr-y --for-sandbox",
        "sandbar deny apr-x",
        "sandbar approvals apr-x",
        "sandbar answer apr-x",
        "sandbar answer apr-x --choice once",
        "sandbar answer apr-x -",
        "sandbar answer apr-x -y",
        "sandbar budget set agent --tokens 2M --usd 5 --per-minute 100k",
        "sandbar budget set agent --usd none",
        "sandbar budget set agent --none",
        "sandbar budget show agent",
        "sandbar model clear agent",
        "sandbar usage agent --by day --from 2026-11-01 --to 2026-11-15",
        "sandbar token create --name x --role agent --session agent",
        "sandbar webhook add https://a.example/x --name pager --kind approval. --kind process.crash_loop",
        "sandbar webhook rm a b",
        "sandbar quarantine",
        "sandbar quarantine ls -q",
        "sandbar quarantine adopt sbx-x --name a --template b",
        "sandbar quarantine rm -f a b",
        "sandbar up --adopt --remove-quarantined-after 30d",
    ] {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn a_rule_may_have_blanks() -> Result<(), clap::Error> {
    let rule = "api.github.com GET,HEAD /repos/**";
    let Verb::Net(verbs::net::Net::Allow(change)) =
        Args::try_parse_from(["sandbar", "net", "allow", "agent", rule])?.verb
    else {
        panic!("it is another verb");
    };
    assert_eq!((change.sandbox.as_str(), change.rules), ("agent", vec![rule.to_owned()]));
    Ok(())
}

#[test]
fn workspaces_are_copied_unless_asked() {
    let of = |directory: &str, bind| Ok(Workspace { directory: directory.into(), bind });
    assert_eq!(workspace("."), of(".", Bind::Copy));
    assert_eq!(workspace("/a:b"), of("/a:b", Bind::Copy));
    assert_eq!(workspace("src:rw"), of("src", Bind::ReadWrite));
}

/// `UPDATE_HELP=1 cargo test -p sandbar help` writes the pages anew.
#[test]
fn help_pages_are_as_checked_in() -> std::io::Result<()> {
    fn pages(command: &mut clap::Command, path: &str, out: &mut String) {
        let path = format!("{path} {}", command.get_name()).trim().to_owned();
        out.push_str(&format!("$ {path} --help\n{}\n", command.render_long_help()));
        let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        for name in names {
            if let Some(verb) = command.find_subcommand_mut(&name) {
                pages(verb, &path, out);
            }
        }
    }
    let mut command = Args::command().term_width(100);
    command.build();
    let mut now = String::new();
    pages(&mut command, "", &mut now);
    let now: String = now.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/args/help.txt");
    if std::env::var_os("UPDATE_HELP").is_some() {
        return std::fs::write(file, now);
    }
    let checked_in = std::fs::read_to_string(file)?;
    for (at, (old, new)) in checked_in.lines().zip(now.lines()).enumerate() {
        assert_eq!(old, new, "line {} of src/args/help.txt; UPDATE_HELP=1 writes it anew", at + 1);
    }
    assert_eq!(checked_in.lines().count(), now.lines().count());
    Ok(())
}
