use super::*;

fn entry(token: bool) -> Entry {
    let argv = ["/opt/sand bar", "mcp", "web", "--create"].map(str::to_owned).to_vec();
    let server = if token { vec!["--server".into(), "https://host:7227".into()] } else { Vec::new() };
    let (session, base) = ("web".into(), "https://host:7227".into());
    Entry { name: "sandbar".into(), argv, token, creates: true, server, session, base }
}

#[test]
fn each_agent_gets_its_own_form() {
    let parsed = |agent, token| -> Value {
        let shown = entry(token).shown(agent);
        let json = shown.find('{').map_or("", |at| &shown[at..]);
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{shown}: {error}"))
    };
    let program = json!({"command": "/opt/sand bar", "args": ["mcp", "web", "--create"]});
    for agent in [Agent::Claude, Agent::ClaudeDesktop, Agent::Json] {
        assert_eq!(parsed(agent, false)["mcpServers"]["sandbar"], program);
        assert_eq!(parsed(agent, true)["mcpServers"]["sandbar"]["env"], json!({"SANDBAR_TOKEN": PLACEHOLDER}));
    }
    let opencode = parsed(Agent::Opencode, false);
    assert_eq!(opencode["mcp"]["sandbar"]["command"], json!(["/opt/sand bar", "mcp", "web", "--create"]));
    let http = parsed(Agent::Http, false);
    assert_eq!(http["mcpServers"]["sandbar"]["url"], "https://host:7227/v1/sessions/web/mcp");
    assert_eq!(
        entry(false).shown(Agent::Claude).lines().next(),
        Some("claude mcp add sandbar -- '/opt/sand bar' mcp web --create")
    );
    assert_eq!(
        entry(true).codex(),
        "[mcp_servers.sandbar]\ncommand = \"/opt/sand bar\"\nargs = [\"mcp\",\"web\",\"--create\"]\n\
         env = { SANDBAR_TOKEN = \"sbt_…\" }\ntool_timeout_sec = 1800\n"
    );
}

#[test]
fn what_is_advised_gives_a_token_that_is_enough() {
    assert_eq!(entry(false).advice(&[Agent::Claude]), None);
    let ends = |entry: &Entry, wanted: &str| {
        let advice = entry.advice(&[Agent::Http]).unwrap_or_default();
        assert!(advice.ends_with(wanted), "{advice}");
    };
    let begin = "\n  sandbar session new --name web\n  sandbar token create --name agent --role agent --session web";
    ends(&entry(false), begin);
    ends(&entry(true), "\n  sandbar token create --name agent --role operator --server https://host:7227");
    ends(&Entry { creates: false, ..entry(true) }, "--role agent --session web --server https://host:7227");
}

#[test]
fn a_directory_gives_a_name_that_a_session_can_have() {
    for (directory, name) in
        [("web", "web"), ("My Project_2", "my-project-2"), ("..", "workspace"), ("-ü-x-", "x"), ("", "workspace")]
    {
        assert_eq!(as_name(directory), name);
        assert!(sandbar_api::check::session_name(name).is_ok());
    }
    assert!(sandbar_api::check::session_name(&as_name(&"long ".repeat(50))).is_ok());
}
