//! `net log`: what went through the gate of a sandbox and what did not, a line each.

use futures_util::StreamExt as _;
use sandbar_api::Event;
use sandbar_client::EventFilter;
use serde_json::Value;

use crate::{
    amount::{count, dollars},
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    text::{self, inert, inert_json},
};

/// How many events a request brings.
const PAGE: u32 = 1000;

/// Show the connections, requests and LLM calls of a sandbox
///
/// A line each: when, what was decided, what was asked for, how it ended, bytes towards the host and back, how long it took,
/// the rule and the names of secrets that were put in. LLM calls show their tokens and what they cost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar net log agent
  sandbar net log -f agent
  sandbar --json net log agent | jq -r 'select(.type == \"net.denied\") | .data.host' | sort | uniq -c")]
pub(crate) struct Log {
    /// Go on with what happens next
    #[arg(short, long)]
    follow: bool,

    /// The first event wanted, by its number; by default the first that is kept
    #[arg(long, value_name = "N")]
    from: Option<u64>,

    /// Its id or name
    sandbox: String,
}

pub(crate) async fn log(args: &Log, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let filter = EventFilter { sandbox: Some(args.sandbox.clone()), kinds: vec!["net.".into(), "llm.".into()] };
    if args.follow {
        let mut events = std::pin::pin!(client.events_matching(args.from, filter));
        while let Some(event) = events.next().await {
            show(&event?, context.print)?;
        }
        return Ok(exit::OK);
    }
    let mut from = args.from;
    loop {
        let page = client.event_page_matching(from, Some(PAGE), &filter).await?;
        page.iter().try_for_each(|event| show(event, context.print))?;
        match page.last() {
            Some(last) => from = Some(last.seq + 1),
            None => return Ok(exit::OK),
        }
    }
}

fn show(event: &Event, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(event);
    }
    let (verdict, style, rest) = described(event);
    let at = event.at.format("%Y-%m-%d %H:%M:%S%.3f");
    let verdict = format!("{:<8}", inert(&verdict));
    let verdict = style.map_or(verdict.clone(), |style| print.mark(&verdict, style));
    print.line(format!("{at}  {verdict}  {}", inert(&rest)))
}

/// The verdict, how to mark it, and everything else on one line.
fn described(event: &Event) -> (String, Option<Style>, String) {
    let data = Data(&event.data);
    let (verdict, style) = match event.kind.as_str() {
        "net.opened" => ("open", None),
        "net.closed" | "net.request" => ("allow", Some(Style::Green)),
        "net.denied" => ("deny", Some(Style::Red)),
        "net.failed" => ("failed", Some(Style::Yellow)),
        "net.log_lost" => {
            let lost = format!("{} lines were not written down", count(data.number("count").unwrap_or(0)));
            return ("lost".into(), Some(Style::Red), lost);
        }
        "net.changed" => return ("changed".into(), Some(Style::Cyan), change(&data)),
        "llm.call" => return ("llm".into(), Some(Style::Cyan), call(&data)),
        "llm.usage_clamped" => return ("clamped".into(), Some(Style::Red), clamped(&data)),
        other => {
            let verdict = other.rsplit('.').next().unwrap_or(other).to_owned();
            return (verdict, None, inert_json(&event.data.to_string()).into_owned());
        }
    };
    (verdict.into(), style, passage(&data))
}

fn passage(data: &Data<'_>) -> String {
    let mut parts = Vec::new();
    let method = data.text("method").map(|method| format!("{method} ")).unwrap_or_default();
    let port = match data.number("port") {
        Some(443) | None => String::new(),
        Some(port) => format!(":{port}"),
    };
    let (host, path) = (data.text("host").unwrap_or("?"), data.text("path").unwrap_or_default());
    parts.push(format!("{method}{host}{port}{path}"));
    parts.extend(data.number("status").map(|status| status.to_string()));
    let bytes = (data.number("sent").unwrap_or(0), data.number("received").unwrap_or(0));
    if bytes != (0, 0) {
        parts.push(format!("↑{} ↓{}", text::size(bytes.0), text::size(bytes.1)));
    }
    parts.extend(data.number("ms").map(|ms| format!("{ms} ms")));
    parts.push(match (data.text("effect"), data.text("rule")) {
        // A person was asked.
        (Some("ask"), Some(rule)) => format!("by asking: {rule}"),
        (_, Some(rule)) => format!("by {rule}"),
        (_, None) => "by no rule".into(),
    });
    let secrets = data.texts("secrets");
    if !secrets.is_empty() {
        parts.push(format!("with {}", secrets.join(", ")));
    }
    parts.extend(data.text("reason").map(Into::into));
    parts.join("  ")
}

/// Whoever changed rules or grants, and what.
fn change(data: &Data<'_>) -> String {
    let mut parts = Vec::new();
    let lists = [(data.text("effect").unwrap_or("added"), data.texts("rules")), ("removed", data.texts("removed"))];
    let lists = lists.into_iter().filter(|(_, rules)| !rules.is_empty());
    parts.extend(lists.map(|(what, rules)| format!("{what} {}", rules.join(", "))));
    for what in ["granted", "revoked"] {
        parts.extend(data.text(what).map(|secret| format!("{what} {secret}")));
    }
    match parts.is_empty() {
        true => data.0.to_string(),
        false => {
            parts.extend(data.text("by").map(|by| format!("by {by}")));
            parts.join("  ")
        }
    }
}

fn call(data: &Data<'_>) -> String {
    let number = |name| count(data.number(name).unwrap_or(0));
    let mut parts = vec![format!("{} at {}", data.text("model").unwrap_or("?"), data.text("upstream").unwrap_or("?"))];
    parts.extend(data.number("status").map(|status| status.to_string()));
    let cached = match data.number("cached_input_tokens") {
        None | Some(0) => String::new(),
        Some(cached) => format!(" ({} cached)", count(cached)),
    };
    match data.0["estimated"] == true {
        true => parts.push(format!("{} tokens (estimated)", number("total_tokens"))),
        false => parts.push(format!("{} in{cached}, {} out", number("input_tokens"), number("output_tokens"))),
    }
    parts.extend(data.0["usd"].as_f64().map(dollars));
    parts.extend(data.number("ms").map(|ms| format!("{ms} ms")));
    parts.extend(data.text("note").map(Into::into));
    parts.join("  ")
}

/// A vendor reported more than its call can use.
fn clamped(data: &Data<'_>) -> String {
    let number = |name| count(data.number(name).unwrap_or(0));
    let dollars = |name: &str| data.0[name].as_f64().map(dollars).unwrap_or_default();
    format!(
        "{} at {}  reported {} tokens ({}), counted {} ({})",
        data.text("model").unwrap_or("?"),
        data.text("upstream").unwrap_or("?"),
        number("reported_tokens"),
        dollars("reported_usd"),
        number("counted_tokens"),
        dollars("counted_usd")
    )
}

struct Data<'a>(&'a Value);

impl<'a> Data<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name)?.as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    fn texts(&self, name: &str) -> Vec<&'a str> {
        self.0.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(kind: &str, data: Value) -> String {
        let event = Event { seq: 1, at: chrono::Utc::now(), kind: kind.into(), sandbox: None, process: None, data };
        let (verdict, _, rest) = described(&event);
        format!("{verdict}: {rest}")
    }

    #[test]
    fn each_kind_reads_as_one_line() {
        for (kind, data, want) in [
            (
                "net.request",
                json!({"host": "api.github.com", "port": 443, "method": "GET", "path": "/user", "rule": "api.github.com",
                    "effect": "allow", "secrets": ["GITHUB_TOKEN"], "status": 200, "sent": 310, "received": 2048, "ms": 84}),
                "allow: GET api.github.com/user  200  ↑310 B ↓2.0 KiB  84 ms  by api.github.com  with GITHUB_TOKEN",
            ),
            (
                "net.denied",
                json!({"host": "evil.example", "port": 8443, "effect": "deny", "reason": "No rule allows it.",
                    "sent": 0, "received": 0, "ms": 0}),
                "deny: evil.example:8443  0 ms  by no rule  No rule allows it.",
            ),
            (
                "net.closed",
                json!({"host": "a.example", "port": 443, "rule": "*", "effect": "ask", "sent": 1, "received": 2, "ms": 5}),
                "allow: a.example  ↑1 B ↓2 B  5 ms  by asking: *",
            ),
            (
                "llm.call",
                json!({"model": "m", "upstream": "u", "input_tokens": 1200, "cached_input_tokens": 1000,
                    "output_tokens": 34, "total_tokens": 1234, "usd": 0.25, "estimated": false, "status": 200, "ms": 920}),
                "llm: m at u  200  1,200 in (1,000 cached), 34 out  $0.250000  920 ms",
            ),
            (
                "llm.call",
                json!({"model": "m", "upstream": "u", "total_tokens": 5000, "usd": 0, "estimated": true, "ms": 1,
                    "note": "no usage was reported"}),
                "llm: m at u  5,000 tokens (estimated)  $0.00  1 ms  no usage was reported",
            ),
            (
                "llm.usage_clamped",
                json!({"model": "m", "upstream": "u", "reported_tokens": 2_199_023_255_552_u64, "counted_tokens": 49,
                    "reported_usd": 2.5, "counted_usd": 0.25}),
                "clamped: m at u  reported 2,199,023,255,552 tokens ($2.50), counted 49 ($0.250000)",
            ),
            ("net.log_lost", json!({"count": 12}), "lost: 12 lines were not written down"),
            ("net.changed", json!({"removed": ["a.b"], "by": "socket"}), "changed: removed a.b  by socket"),
            (
                "net.changed",
                json!({"effect": "ask", "rules": ["a.b", "@c"], "by": "token:x"}),
                "changed: ask a.b, @c  by token:x",
            ),
            ("net.changed", json!({"granted": "A", "by": "socket"}), "changed: granted A  by socket"),
            ("net.changed", json!({"new": 1}), r#"changed: {"new":1}"#),
            ("llm.new", json!({"a": 1}), r#"new: {"a":1}"#),
        ] {
            assert_eq!(line(kind, data), want);
        }
    }

    #[test]
    fn data_that_was_not_expected_is_no_failure() {
        for data in [json!(null), json!([]), json!({"host": 7, "port": "x", "secrets": "y"})] {
            assert!(line("net.request", data).starts_with("allow: ?"));
        }
    }
}
