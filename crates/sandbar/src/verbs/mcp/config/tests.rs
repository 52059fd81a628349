use super::*;

fn entry(token: bool) -> Entry {
    let argv = ["/opt/sand bar", "mcp", "web", "--create"].map(str::to_owned).to_vec();
    Entry { name: "sandbar".into(), argv, token, session: "web".into(), base: "https://host:7227".into() }
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
fn a_directory_gives_a_name_that_a_session_can_have() {
    for (directory, name) in
        [("web", "web"), ("My Project_2", "my-project-2"), ("..", "workspace"), ("-ü-x-", "x"), ("", "workspace")]
    {
        assert_eq!(as_name(directory), name);
        assert!(sandbar_api::check::session_name(name).is_ok());
    }
    assert!(sandbar_api::check::session_name(&as_name(&"long ".repeat(50))).is_ok());
}
