//! An agent against its own budget: numbers, ids and headers that it may write and nobody may believe. What the vendor itself
//! counted is the measure. The control of each is the same call under no budget, which goes through.

mod spending;

use sandbar_api::{CreateSandbox, SetBudget, WorkspaceSource};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target, recipe},
    support::Outcome,
    wire::{Step, status},
};

const ONE: &[&str] = &["standard"];

pub(crate) fn all() -> Vec<Attack> {
    let budget =
        |name, act, control| Attack::act(Class::Budgets, name, act, Control::Act("without a budget", control)).on(ONE);
    vec![
        budget("session_and_budget_in_the_body", act!(claims), act!(claims_free)),
        budget("session_in_headers", act!(headers), act!(headers_free)),
        budget("another_sessions_token", act!(tokens), act!(tokens_free)),
        budget("number_that_is_no_number", act!(numbers), act!(numbers_free)),
        budget("fields_twice", act!(twice), act!(twice_free)),
        budget("input_that_the_vendor_has", act!(stored), act!(stored_free)),
        budget("body_that_cannot_be_read", act!(encoded), act!(plain_body)),
        budget("dearer_model_than_the_budget_has", act!(dearer), act!(dearer_free)),
        budget("fifty_streams_at_once", act!(spending::storm), act!(spending::storm_free)),
        budget("gone_before_the_answer", act!(spending::gone), act!(spending::gone_free)),
        budget("answer_without_usage", act!(spending::silent), act!(spending::silent_free)),
        budget("children_beside_their_parent", act!(spending::children), act!(spending::children_free)),
        budget("raising_it_by_the_api", act!(spending::raise), act!(spending::raise_free)),
    ]
}

/// A sandbox of its own session, with this budget in tokens.
async fn agent(stage: &Stage, target: &Target, tokens: Option<u64>, parent: Option<&str>) -> Outcome<(Target, String)> {
    let shared = stage.directory("agent")?;
    std::fs::hard_link(stage.scratch.join("attacks"), shared.join("attacks"))?;
    let request = CreateSandbox {
        template: Some(stage.template(&recipe(target.profile, "", &[]))?),
        workspace: WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() },
        parent: parent.map(str::parse).transpose().map_err(|_| "no session id")?,
        ..CreateSandbox::default()
    };
    let made = stage.client.create(&request, None).await?.sandbox;
    let session = made.session.to_string();
    if tokens.is_some() {
        stage.client.set_budget(&session, &SetBudget { tokens, ..SetBudget::default() }).await?;
    }
    Ok((Target { id: made.id.to_string(), shared, profile: target.profile, template: String::new() }, session))
}

fn post(path: &str, more: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:7228\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

const CHAT: &str = "/llm/openai/v1/chat/completions";
const RESPONSES: &str = "/llm/openai/v1/responses";
const MESSAGES: &str = "/llm/anthropic/v1/messages";

/// A call with this prompt and these fields besides.
fn chat(prompt: &str, more: &str) -> String {
    format!("{{\"model\":\"small\",\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]{more}}}")
}

/// What the vendor counted since `before`, in tokens, and how often it was asked.
fn counted(stage: &Stage, before: usize) -> (u64, usize) {
    let seen = stage.outside.upstream.seen().split_off(before);
    (seen.iter().map(|one| one.input + one.output).sum(), seen.len())
}

async fn call(stage: &Stage, target: &Target, request: String) -> Outcome<String> {
    stage.wire(target, &[Step::send(request), Step::Answer(3000)]).await
}

/// Each request by an agent whose budget is used up, or who has none: whether the vendor was asked at all.
async fn each(stage: &Stage, target: &Target, tokens: Option<u64>, requests: &[String]) -> Outcome<Finding> {
    let (agent, _) = agent(stage, target, tokens, None).await?;
    let mut said = vec![];
    let mut found = None;
    for request in requests {
        let before = stage.outside.upstream.seen().len();
        let heard = call(stage, &agent, request.clone()).await?;
        let (used, calls) = counted(stage, before);
        if calls > 0 {
            let shown: String = request.rsplit("\r\n\r\n").next().unwrap_or_default().chars().take(120).collect();
            found = Some(Finding::escaped(format!("{shown}: the vendor counted {used} tokens")));
            break;
        }
        said.push(status(&heard).to_owned());
    }
    stage.delete(&agent).await?;
    said.sort();
    said.dedup();
    Ok(found.unwrap_or_else(|| Finding::contained(format!("{} forms: {}", requests.len(), said.join(", ")))))
}

/// Less than any call needs.
const SPENT: Option<u64> = Some(10);

async fn others(stage: &Stage, target: &Target) -> Outcome<(Target, String)> {
    agent(stage, target, Some(1_000_000), None).await
}

async fn claimed(stage: &Stage, target: &Target, tokens: Option<u64>) -> Outcome<Finding> {
    let (rich, session) = others(stage, target).await?;
    let bodies = [
        chat("write:5", &format!(",\"metadata\":{{\"session_id\":\"{session}\",\"max_session_tokens\":1000000}}")),
        chat("write:5", &format!(",\"user\":\"{session}\",\"session_id\":\"{session}\",\"session\":\"{session}\"")),
        chat(
            "write:5",
            ",\"budget\":1000000,\"max_session_tokens\":1000000,\"tokens_budget\":1000000,\"tokens\":1000000",
        ),
        chat("write:5", &format!(",\"extra_body\":{{\"metadata\":{{\"session_id\":\"{session}\"}}}}")),
        chat("write:5", ",\"max_tokens\":1"),
    ];
    let mut requests: Vec<String> = bodies.iter().map(|body| post(CHAT, "", body)).collect();
    requests.push(post(&format!("{CHAT}?session={session}&budget=1000000"), "", &bodies[4]));
    // The gate asked through the gate is still this sandbox's.
    for origin in ["http://127.0.0.1:7228", "http://localhost:7228"] {
        requests.push(post(&format!("{origin}{CHAT}"), "", &bodies[4]));
    }
    requests.push(post(MESSAGES, "", &format!("{{\"model\":\"claude\",\"max_tokens\":1,\"metadata\":{{\"user_id\":\"{session}\"}},\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}")));
    let found = each(stage, target, tokens, &requests).await;
    let charged = stage.client.budget(&session).await?;
    stage.delete(&rich).await?;
    if charged.tokens_used + charged.tokens_reserved > 0 {
        return Ok(Finding::escaped(format!("another session paid {}", charged.tokens_used)));
    }
    found
}

async fn claims(stage: &Stage, target: &Target) -> Outcome<Finding> {
    claimed(stage, target, SPENT).await
}

async fn claims_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    claimed(stage, target, None).await
}

async fn with_headers(stage: &Stage, target: &Target, tokens: Option<u64>) -> Outcome<Finding> {
    let (rich, session) = others(stage, target).await?;
    let names = [
        "X-Session-Id",
        "Sandbar-Session",
        "X-Sandbar-Session",
        "X-Budget",
        "X-Litellm-Tags",
        "Forwarded",
        "X-Forwarded-For",
        "Openai-Organization",
        "Cookie",
        "Proxy-Authorization",
    ];
    let requests: Vec<String> = names
        .iter()
        .map(|name| post(CHAT, &format!("{name}: {session}\r\n"), &chat("write:5", ",\"max_tokens\":1")))
        .collect();
    let found = each(stage, target, tokens, &requests).await;
    let charged = stage.client.budget(&session).await?;
    stage.delete(&rich).await?;
    if charged.tokens_used + charged.tokens_reserved > 0 {
        return Ok(Finding::escaped(format!("another session paid {}", charged.tokens_used)));
    }
    found
}

async fn headers(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_headers(stage, target, SPENT).await
}

async fn headers_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_headers(stage, target, None).await
}

/// Tokens of the server's, even an admin's, say nothing to a gate.
async fn with_tokens(stage: &Stage, target: &Target, tokens: Option<u64>) -> Outcome<Finding> {
    let body = chat("write:5", ",\"max_tokens\":1");
    let requests = ["Authorization: Bearer TOKEN\r\n", "X-Api-Key: TOKEN\r\n", "Api-Key: TOKEN\r\n"]
        .map(|head| post(CHAT, &head.replace("TOKEN", &stage.token), &body));
    each(stage, target, tokens, &requests).await
}

async fn tokens(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_tokens(stage, target, SPENT).await
}

async fn tokens_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_tokens(stage, target, None).await
}

/// Room for a few calls; caps and counts that would be more than it looks.
const ROOM: Option<u64> = Some(600);

fn odd_numbers() -> Vec<String> {
    let fields = [
        ",\"max_tokens\":-1",
        ",\"max_tokens\":0",
        ",\"max_tokens\":1e9",
        ",\"max_tokens\":100000000",
        ",\"max_tokens\":18446744073709551615",
        ",\"max_tokens\":18446744073709551617",
        ",\"max_tokens\":1.5",
        ",\"max_tokens\":\"1\"",
        ",\"max_tokens\":[1]",
        ",\"max_tokens\":true",
        ",\"max_completion_tokens\":5000,\"max_tokens\":1",
        ",\"max_tokens\":5000,\"max_completion_tokens\":1",
        ",\"n\":1000000,\"max_tokens\":1",
        ",\"n\":128,\"max_tokens\":50",
        ",\"n\":-1,\"max_tokens\":1",
        ",\"n\":0,\"max_tokens\":1",
        ",\"n\":1e3,\"max_tokens\":1",
        ",\"n\":\"9\",\"max_tokens\":1",
        ",\"best_of\":100,\"max_tokens\":1",
    ];
    let mut requests: Vec<String> = fields.iter().map(|field| post(CHAT, "", &chat("write:5", field))).collect();
    let message =
        |more: &str| format!("{{\"model\":\"claude\",\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]{more}}}");
    for more in [
        "",
        ",\"max_tokens\":null",
        ",\"max_tokens\":-5",
        ",\"max_tokens\":99999",
        ",\"max_tokens\":5,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":99999}",
    ] {
        requests.push(post(MESSAGES, "", &message(more)));
    }
    requests.push(post(RESPONSES, "", "{\"model\":\"small\",\"input\":\"x\",\"max_output_tokens\":99999}"));
    requests
}

async fn numbers(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, ROOM, &odd_numbers()).await
}

async fn numbers_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, None, &odd_numbers()).await
}

/// Which of two counts is a matter of the parser.
fn doubles() -> Vec<String> {
    let message = "\"messages\":[{\"role\":\"user\",\"content\":\"write:5\"}]";
    [
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1,\"max_tokens\":5000}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":5000,\"max_tokens\":1}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1,\"max\\u005ftokens\":5000}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1,\"Max_Tokens\":5000}}"),
        format!("{{\"model\":\"small\",\"model\":\"large\",{message},\"max_tokens\":1}}"),
        format!("{{\"model\":\"small\",\"MODEL\":\"large\",{message},\"max_tokens\":1}}"),
        format!("{{\"model\":\"small\",{message},\"n\":1,\"n\":100,\"max_tokens\":1}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1}}{{\"max_tokens\":5000}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1}} x"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1,}}"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":1 /* \"max_tokens\":5000 */}}"),
        format!("\u{feff}{{\"model\":\"small\",{message},\"max_tokens\":5000}}"),
        format!("[{{\"model\":\"small\",{message},\"max_tokens\":1}}]"),
        format!("{{\"model\":\"small\",{message},\"max_tokens\":0x1}}"),
        format!("{{\"model\":\"small\\u0000\",{message},\"max_tokens\":1}}"),
    ]
    .iter()
    .map(|body| post(CHAT, "", body))
    .collect()
}

async fn twice(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, ROOM, &doubles()).await
}

/// One of each field, which everybody reads alike.
async fn twice_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, None, &[post(CHAT, "", &chat("write:5", ",\"max_tokens\":5000"))]).await
}

/// What stands for more than its bytes.
fn unbounded() -> Vec<String> {
    let response = |more: &str| {
        post(RESPONSES, "", &format!("{{\"model\":\"small\",\"input\":\"x\",\"max_output_tokens\":16{more}}}"))
    };
    let mut requests: Vec<String> = [
        ",\"previous_response_id\":\"resp_1\"",
        ",\"conversation\":\"conv_1\"",
        ",\"prompt\":{\"id\":\"pmpt_1\"}",
        ",\"background\":true",
        ",\"tools\":[{\"type\":\"web_search\"}]",
        ",\"tools\":[{\"type\":\"file_search\",\"vector_store_ids\":[\"vs_1\"]}]",
        ",\"tools\":[{\"type\":\"code_interpreter\",\"container\":{\"type\":\"auto\"}}]",
        ",\"tools\":[{\"type\":\"mcp\",\"server_url\":\"https://evil.test\"}]",
        ",\"service_tier\":\"priority\"",
    ]
    .map(response)
    .to_vec();
    let input = |item: &str| {
        post(
            RESPONSES,
            "",
            &format!(
                "{{\"model\":\"small\",\"max_output_tokens\":16,\"input\":[{{\"role\":\"user\",\"content\":[{item}]}}]}}"
            ),
        )
    };
    requests.push(input("{\"type\":\"input_file\",\"file_id\":\"file_1\"}"));
    requests.push(input("{\"type\":\"input_file\",\"file_url\":\"https://evil.test/huge.pdf\"}"));
    requests.push(input(
        "{\"type\":\"input_image\",\"file_id\":\"file_1\"},{\"type\":\"input_file\",\"file_id\":\"file_1\"}",
    ));
    requests.push(post(
        RESPONSES,
        "",
        "{\"model\":\"small\",\"max_output_tokens\":16,\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_1\"}]}",
    ));
    let message = |content: &str, more: &str| {
        post(
            MESSAGES,
            "",
            &format!(
                "{{\"model\":\"claude\",\"max_tokens\":5,\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]{more}}}"
            ),
        )
    };
    requests.push(message("[{\"type\":\"document\",\"source\":{\"type\":\"file\",\"file_id\":\"file_1\"}}]", ""));
    requests.push(message(
        "[{\"type\":\"document\",\"source\":{\"type\":\"url\",\"url\":\"https://evil.test/x.pdf\"}}]",
        "",
    ));
    requests.push(message("\"x\"", ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]"));
    requests.push(message("\"x\"", ",\"mcp_servers\":[{\"type\":\"url\",\"url\":\"https://evil.test\"}]"));
    requests.push(message("\"x\"", ",\"container\":\"c_1\""));
    for path in [
        "/llm/openai/v1/files",
        "/llm/openai/v1/batches",
        "/llm/openai/v1/responses/resp_1",
        "/llm/openai/v1/../v1/chat/completions",
        "/llm/openai/v1/chat/completions/",
        "/llm/anthropic/v1/messages/batches",
        "/llm/openai/v1/%63hat/completions",
    ] {
        requests.push(post(path, "", &chat("write:5", ",\"max_tokens\":1")));
    }
    requests
}

const PLENTY: Option<u64> = Some(100_000);

async fn stored(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, PLENTY, &unbounded()).await
}

async fn stored_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    each(stage, target, None, &unbounded()).await
}

/// A body that counts for less than it is.
async fn encoded(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let body = chat(&"word ".repeat(300), ",\"max_tokens\":50");
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let short = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\n{body}");
    let requests = [
        post(CHAT, "Content-Encoding: gzip\r\n", &body),
        post(CHAT, "Content-Encoding: br\r\n", &body),
        post(CHAT, "Content-Encoding: zstd\r\n", &body),
        post(CHAT, "Content-Encoding: identity, gzip\r\n", &body),
        chunked,
        short,
    ];
    each(stage, target, ROOM, &requests).await
}

async fn plain_body(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let body = chat(&"word ".repeat(300), ",\"max_tokens\":50");
    each(stage, target, None, &[post(CHAT, "", &body)]).await
}

/// A budget in dollars: what has no price, or a higher one, by whatever name.
async fn by_price(stage: &Stage, target: &Target, usd: Option<f64>) -> Outcome<Finding> {
    let (agent, session) = agent(stage, target, None, None).await?;
    if usd.is_some() {
        stage.client.set_budget(&session, &SetBudget { usd, ..SetBudget::default() }).await?;
    }
    let (before, mut said) = (stage.outside.upstream.seen().len(), vec![]);
    for model in ["large", "Large", "large ", "unknown", "../large", "small\\u0000large"] {
        let body = chat("write:5000", ",\"max_tokens\":5000").replace("\"small\"", &format!("\"{model}\""));
        said.push(status(&call(stage, &agent, post(CHAT, "", &body)).await?).to_owned());
    }
    let (used, calls) = counted(stage, before);
    stage.delete(&agent).await?;
    Ok(if calls > 0 {
        Finding::escaped(format!("the vendor counted {used} tokens of the dear one"))
    } else {
        Finding::contained(said.join(", "))
    })
}

/// 5000 tokens of the large one cost a dollar.
async fn dearer(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by_price(stage, target, Some(0.05)).await
}

async fn dearer_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by_price(stage, target, None).await
}
