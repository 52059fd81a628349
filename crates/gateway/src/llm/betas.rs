//! What a client asks to try out in a header. A beta may change what a call costs, so under a budget in dollars only those
//! pass that are known not to: because all they do is counted by its tokens, or because the field or tool that they are for
//! is judged by itself.

use hyper::HeaderMap;

use super::{refusal::Refusal, unbounded::shown};

/// Anthropic's, without their dates.
const ANTHROPIC: &[&str] = &[
    // says who asks
    "claude-code",
    "oauth",
    // how thinking is shown or told of; it is output like any other, and interleaved it is bounded by `thinking`
    "interleaved-thinking",
    "adaptive-thinking",
    "redact-thinking",
    "dev-full-thinking",
    "thinking-token-count",
    // how much is thought and written, below the cap
    "effort",
    "task-budgets",
    "output-128k",
    // how tools are told to the model, called and streamed
    "fine-grained-tool-streaming",
    "token-efficient-tools",
    "advanced-tool-use",
    "tool-examples",
    "computer-use",
    "structured-outputs",
    "mid-conversation-system",
    "afk-mode",
    // `context_management`, of which only clearing passes
    "context-management",
    // caching at the usual price; `ttl` is judged by itself
    "prompt-caching",
    "prompt-caching-scope",
    "extended-cache-ttl",
    "cache-diagnosis",
    // for tools that the vendor runs, which are refused by their type
    "advisor-tool",
    "tool-search-tool",
    "web-search",
    // for `speed`, which is refused
    "fast-mode",
    // counting, which is free
    "token-counting",
];

/// OpenAI's.
const OPENAI: &[&str] = &["responses=experimental", "responses=v1"];

/// `priced`: a limit in dollars is among the budget's.
pub(super) fn check(headers: &HeaderMap, priced: bool) -> Result<(), Refusal> {
    if !priced {
        return Ok(());
    }
    let anthropic = |beta: &str| ANTHROPIC.contains(&dateless(beta));
    each(headers, "anthropic-beta", anthropic)?;
    each(headers, "openai-beta", |beta| OPENAI.contains(&beta))
}

fn each(headers: &HeaderMap, name: &str, known: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    for value in headers.get_all(name) {
        let value = String::from_utf8_lossy(value.as_bytes());
        let mut betas = value.split(',').map(str::trim).filter(|beta| !beta.is_empty());
        if let Some(beta) = betas.find(|beta| !known(beta)) {
            let cause = format_args!(
                "`{}` is not known to leave prices as they are configured, so under a budget in dollars it is refused",
                shown(beta)
            );
            return Err(Refusal::field(name, cause));
        }
    }
    Ok(())
}

/// Without the `-2025-05-14` or `-20250514` at its end.
fn dateless(beta: &str) -> &str {
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    let dashed = beta.len().checked_sub("-2025-05-14".len()).and_then(|at| beta.split_at_checked(at));
    if let Some((name, date)) = dashed
        && let ["", year, month, day] = date.split('-').collect::<Vec<_>>()[..]
        && digits(year, 4)
        && digits(month, 2)
        && digits(day, 2)
    {
        return name;
    }
    match beta.rsplit_once('-') {
        Some((name, date)) if digits(date, 8) => name,
        _ => beta,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &'static str, values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value.parse().expect("a value"));
        }
        assert_eq!(check(&headers, false), Ok(()), "without a budget in dollars all pass");
        check(&headers, true).err().map(|refusal| refusal.message)
    }

    #[test]
    fn what_claude_code_and_codex_ask_for_passes() {
        let usual = "claude-code-20250219, interleaved-thinking-2025-05-14,redact-thinking-2026-02-12,\
             thinking-token-count-2026-05-13,context-management-2025-06-27,prompt-caching-scope-2026-01-05,\
             mid-conversation-system-2026-04-07,advanced-tool-use-2025-11-20,effort-2025-11-24,";
        assert_eq!(refused("anthropic-beta", &[usual, "extended-cache-ttl-2025-04-11"]), None);
        assert_eq!(refused("openai-beta", &["responses=experimental"]), None);
    }

    #[test]
    fn what_may_change_a_price_is_refused_by_name() {
        for (name, values, beta) in [
            ("anthropic-beta", &["effort-2025-11-24,context-1m-2025-08-07"][..], "`context-1m-2025-08-07`"),
            ("anthropic-beta", &["effort-2025-11-24", " context-1m-2027-01-01"], "`context-1m-2027-01-01`"),
            ("anthropic-beta", &["effort-2025-11-24-fast"], "`effort-2025-11-24-fast`"),
            ("anthropic-beta", &["Effort-2025-11-24"], "`Effort-2025-11-24`"),
            ("openai-beta", &["assistants=v2"], "`assistants=v2`"),
            ("openai-beta", &["effort-2025-11-24"], "`effort-2025-11-24`"),
        ] {
            let message = refused(name, values).expect("refused");
            assert!(message.starts_with(&format!("`{name}`: {beta}")), "{message}");
        }
        assert_eq!([dateless("a-2025-05-14"), dateless("ä-20250514"), dateless("-05-14")], ["a", "ä", "-05-14"]);
    }
}
