//! Whatever text arrives, parsing answers and never panics; and what is decided agrees with a plainer way of deciding it.

use bolero::check;

use crate::{
    Account, Amount, Effect, Host, Limits, Placement, Policy, Price, Rule, Sets, Source, Swap, Verdict,
    path::{PathPattern, Plain},
};

/// Each byte picks a word, so that random bytes become text that is nearly right.
fn speak(words: &[&str], bytes: &[u8]) -> String {
    bytes.iter().map(|byte| words[usize::from(*byte) % words.len()]).collect()
}

/// The engine makes up to 64 bytes; texts that are right are short.
fn short(bytes: &[u8], longest: usize) -> &[u8] {
    &bytes[..bytes.len() % (longest + 1)]
}

const HOST_WORDS: &[&str] = &[
    "a",
    "Z",
    "9",
    "0",
    "127",
    "0x7f",
    "-",
    ".",
    ".",
    ":",
    "::",
    "[",
    "]",
    "*",
    "*.",
    "example.org",
    "ffff",
    "%",
    "@",
    "_",
    "/",
    "\0",
    "\n",
    " ",
    "ü",
    "。",
    "443",
    ",",
];

#[test]
fn fuzz_host() {
    check!().for_each(|bytes| {
        let bytes = short(bytes, 24);
        for text in [speak(HOST_WORDS, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            if let Ok(host) = Host::parse(&text) {
                assert_eq!(Host::parse(&host.to_string()).as_ref(), Ok(&host), "{text:?}");
                match &host {
                    Host::Name(name) => {
                        let plain =
                            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
                        assert!(name.bytes().all(plain) && (1..=253).contains(&name.len()), "{text:?}");
                        assert_eq!(*name, text.to_ascii_lowercase(), "what is matched is what was written");
                        assert!(name.split('.').all(|label| (1..=63).contains(&label.len())), "{text:?}");
                    }
                    Host::Ip(ip) => assert_eq!(*ip, ip.to_canonical(), "{text:?}"),
                }
            }
            if let Ok((host, port)) = Host::parse_authority(&text, 443) {
                assert!(port > 0);
                let shown = if matches!(host, Host::Ip(ip) if ip.is_ipv6()) {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                };
                assert_eq!(Host::parse_authority(&shown, 1), Ok((host, port)), "{text:?}");
            }
        }
    });
}

#[test]
fn fuzz_rule() {
    let words =
        [HOST_WORDS, &["GET", "post", " ", " /", "/**", "/*", "%2F", "@python", "?", "..", " ech", "raw"]].concat();
    check!().for_each(|bytes| {
        let bytes = short(bytes, 24);
        for text in [speak(&words, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            if let Ok(rule) = Rule::parse(&text) {
                assert_eq!(Rule::parse(&rule.text).as_ref(), Ok(&rule), "{text:?}");
                assert!(!rule.text.chars().any(char::is_control), "{text:?}");
            }
        }
    });
}

/// A rule for what is below a name matches exactly what is so by comparing labels.
#[test]
fn fuzz_suffix() {
    let words = ["a", "b", "a", "b", "ab", "-", ".", ".", "."];
    check!().for_each(|bytes| {
        let bytes = short(bytes, 16);
        let (parent, name) = bytes.split_at(bytes.len() / 3);
        let (parent, name) = (speak(&words, parent), speak(&words, name));
        let (Ok(rule), Ok(host)) = (Rule::parse(&format!("*.{parent}")), Host::parse(&name)) else { return };
        let (labels, wanted): (Vec<_>, Vec<_>) = (name.split('.').collect(), parent.split('.').collect());
        let below = labels.len() > wanted.len() && labels.ends_with(&wanted);
        let policy = Policy::compile([(Effect::Allow, &rule, Source::Template)], &Sets::new());
        let verdict = policy.map(|policy| policy.connect(&host, 443));
        let allowed = matches!(verdict, Ok(Verdict::Decided(decision)) if decision.effect == Effect::Allow);
        assert_eq!(allowed, below, "*.{parent} and {name}");
    });
}

/// What is found at connecting agrees with what is found for every request, and findings name rules that never decide.
#[test]
fn fuzz_policy() {
    let texts = [
        "*",
        "*.b",
        "a.b",
        "c.a.b",
        "*.a.b:443",
        "a.b GET",
        "*.b POST /x/**",
        "a.b /x",
        "a.b /**",
        "* GET,POST",
        "1.2.3.4",
    ];
    let rules: Vec<_> = texts.iter().filter_map(|text| Rule::parse(text).ok()).collect();
    let hosts: Vec<_> = ["b", "a.b", "c.a.b", "1.2.3.4"].iter().filter_map(|text| Host::parse(text).ok()).collect();
    let effects = [Effect::Deny, Effect::Ask, Effect::Allow];
    assert_eq!((rules.len(), hosts.len()), (texts.len(), 4));
    let alone = |effect, rule| Policy::compile([(effect, rule, Source::Template)], &Sets::new()).unwrap_or_default();
    let alone = effects.map(|effect| rules.iter().map(|rule| alone(effect, rule)).collect::<Vec<_>>());
    check!().for_each(|bytes| {
        let bytes = short(bytes, 5);
        let picked = bytes.iter().map(|byte| (usize::from(byte % 3), usize::from(byte / 3) % rules.len()));
        let written = picked.clone().map(|(effect, rule)| (effects[effect], &rules[rule], Source::Template));
        let Ok(policy) = Policy::compile(written.clone(), &Sets::new()) else { panic!("no set is named") };
        let mut named = Vec::new();
        for host in &hosts {
            for port in [80, 443] {
                let verdict = policy.connect(host, port);
                for method in ["GET", "POST", "PUT"] {
                    for path in ["/", "/x", "/x/y", "/x/../y"] {
                        let decision = policy.request(host, port, method, path);
                        let holds = |policy: &Policy| policy.request(host, port, method, path).rule.is_some();
                        let strongest = picked.clone().filter(|(effect, rule)| holds(&alone[*effect][*rule])).min();
                        let strongest = strongest.map(|(effect, _)| effects[effect]);
                        assert_eq!(decision.effect, strongest.unwrap_or(Effect::Deny));
                        assert_eq!(decision.rule.is_some(), strongest.is_some());
                        if let Verdict::Decided(decided) = &verdict {
                            assert_eq!(decided.effect, decision.effect, "{host}:{port} {method} {path}");
                        }
                        named.extend(decision.rule.map(|rule| (decision.effect, rule)));
                    }
                }
            }
        }
        for found in policy.findings().into_iter().filter(|found| found.cause.starts_with("never used")) {
            let used = |effect| written.clone().any(|(e, rule, _)| e == effect && rule.text == found.rule);
            let weakest = effects.into_iter().rev().find(|effect| used(*effect)).unwrap_or(Effect::Deny);
            assert!(!named.contains(&(weakest, found.rule.clone())), "{found:?} but it decided");
        }
    });
}

/// Text against pattern by trying every way, on the text of both.
fn naive(pattern: &[&str], path: &[&str]) -> bool {
    fn part(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|taken| part(rest, &text[taken..])),
            [byte, rest @ ..] => text.first() == Some(byte) && part(rest, &text[1..]),
        }
    }
    match pattern {
        [] => path.is_empty(),
        ["**", rest @ ..] => (0..=path.len()).any(|taken| naive(rest, &path[taken..])),
        [segment, rest @ ..] => {
            path.first().is_some_and(|first| part(segment.as_bytes(), first.as_bytes())) && naive(rest, &path[1..])
        }
    }
}

fn split(path: &str) -> Vec<&str> {
    path.split('/').skip(1).collect()
}

#[test]
fn fuzz_path() {
    let words = ["/", "/", "a", "b", "ab", "*", "/**", ".", "%61", "%20"];
    check!().for_each(|bytes| {
        let bytes = short(bytes, 16);
        let (one, two) = bytes.split_at(bytes.len() / 2);
        let (text, path) = (format!("/{}", speak(&words, one)), format!("/{}", speak(&words, two).replace('*', "b")));
        let other = PathPattern::parse(&format!("/{}", speak(&words, two)));
        let (Ok(pattern), Some(plain)) = (PathPattern::parse(&text), Plain::read(&path)) else { return };
        assert_eq!(PathPattern::parse(&pattern.to_string()).as_ref(), Ok(&pattern), "{text}");
        let (pattern_text, path_text) = (text.replace("%61", "a"), path.replace("%61", "a"));
        let wanted = naive(&split(&pattern_text), &split(&path_text));
        assert_eq!(pattern.matches(&plain), wanted, "{text} and {path}");
        if let Ok(other) = other
            && pattern.covers(&other)
            && other.matches(&plain)
        {
            assert!(wanted, "{text} covers {other}, which matches {path}");
        }
    });
    check!().for_each(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let (_, _) = (Plain::read(&text), PathPattern::parse(&text).map(|pattern| pattern.to_string()));
        let encoded: String = bytes.iter().fold("/".into(), |text, byte| format!("{text}%{byte:02x}"));
        if Plain::read(&encoded).is_some() {
            assert!(!bytes.iter().any(|byte| b"\0/\\.;".contains(byte)), "{encoded}");
        }
    });
}

#[test]
fn fuzz_placement() {
    let words = [
        "header:",
        "basic:",
        "query:",
        "body",
        "X-Key",
        "Authorization",
        "host",
        ":",
        "{}",
        "Bearer ",
        " ",
        "a",
        "\r\n",
        "ü",
        "=",
    ];
    check!().for_each(|bytes| {
        let bytes = short(bytes, 12);
        for text in [speak(&words, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            let Ok(placement) = text.parse::<Placement>() else { continue };
            assert_eq!(placement.to_string().parse().as_ref(), Ok(&placement), "{text:?}");
            match &placement {
                Placement::Header { name, format } => {
                    let swapped = placement.swap_header(name, &format.replace("{}", "PH"), "PH", "s");
                    assert_eq!(swapped, Some(format.replace("{}", "s")), "{text:?}");
                }
                Placement::Query { name } => {
                    let swapped = placement.swap_query(&format!("x&{name}=PH"), "PH", "s");
                    assert_eq!(swapped, Some(format!("x&{name}=s")), "{text:?}");
                }
                Placement::Basic { .. } | Placement::Body => {}
            }
        }
        // Whatever a client sends, no secret is where no placeholder was.
        let text = String::from_utf8_lossy(bytes);
        for place in ["header:Authorization:Bearer {}", "basic:me", "query:key"] {
            let Ok(place) = place.parse::<Placement>() else { panic!("{place} is a placement") };
            for value in [text.to_string(), format!("Basic {text}"), format!("Bearer {text}"), format!("key={text}")] {
                assert_eq!(place.swap_header("Authorization", &value, "PLACEHOLDER_OF_30_CHARACTERS__", "s"), None);
                assert_eq!(place.swap_query(&value, "PLACEHOLDER_OF_30_CHARACTERS__", "s"), None);
            }
        }
    });
}

/// However the text is cut into chunks, the output is that of replacing in the whole: leftmost first.
#[test]
fn fuzz_swap() {
    let needles: [&[&str]; 6] =
        [&["ab"], &["aab", "b"], &["abab"], &["abcd", "bc", "cda"], &["aaaa"], &["aabaaab", "baaa", "abba"]];
    check!().for_each(|bytes| {
        let bytes = short(bytes, 64);
        let (Some((pick, bytes)), letters) = (bytes.split_first(), b"aaabbbcd") else { return };
        let needles = needles[usize::from(*pick) % needles.len()];
        let text: Vec<u8> = bytes.iter().map(|byte| letters[usize::from(*byte) % 8]).collect();
        let value = |needle: &str| format!("<{}>", needle.to_uppercase()).into_bytes();
        let (mut whole, mut at, mut count) = (Vec::new(), 0, 0);
        while at < text.len() {
            match needles.iter().find(|needle| text[at..].starts_with(needle.as_bytes())) {
                Some(needle) => {
                    whole.extend(value(needle));
                    (at, count) = (at + needle.len(), count + 1);
                }
                None => {
                    whole.push(text[at]);
                    at += 1;
                }
            }
        }
        let mut swap = Swap::new(needles.iter().map(|needle| (needle.as_bytes().to_vec(), value(needle))).collect());
        let (mut out, mut rest) = (Vec::new(), &text[..]);
        for byte in bytes.iter().cycle().take(bytes.len() * 2) {
            let (chunk, after) = rest.split_at((usize::from(byte >> 3) % 8).min(rest.len()));
            out.extend(swap.push(chunk));
            rest = after;
        }
        out.extend(swap.push(rest));
        out.extend(swap.finish());
        assert_eq!(
            String::from_utf8_lossy(&out),
            String::from_utf8_lossy(&whole),
            "{}",
            String::from_utf8_lossy(&text)
        );
        assert_eq!(swap.count(), count);
    });
}

/// Whatever the order of calls, what is used and held stays within the limits, and nothing stays held.
#[test]
fn fuzz_budget() {
    check!().with_type::<(u8, Option<u8>, Vec<(u8, u8, u8)>)>().for_each(|(tokens, per_minute, steps)| {
        let limits =
            Limits { tokens: Some(u64::from(*tokens) * 8), micros: Some(900), per_minute: per_minute.map(u64::from) };
        let (mut account, mut held, mut now, mut spent) = (Account::default(), Vec::new(), 0, Vec::<(u64, u64)>::new());
        for (what, size, wait) in steps {
            now += u64::from(*wait) * 100;
            let asked = Amount { tokens: u64::from(*size), micros: u64::from(*size) / 2 };
            match (what % 4, held.pop()) {
                (0 | 1, back) => {
                    held.extend(back);
                    match account.admit(&limits, asked, now) {
                        Ok(()) => {
                            account.hold(asked);
                            held.push(asked);
                        }
                        Err(crate::Short::Rate { retry_after_ms, .. }) if held.is_empty() => {
                            assert_eq!(account.admit(&limits, asked, now + retry_after_ms), Ok(()), "as was promised");
                        }
                        Err(_) => {}
                    }
                }
                (2, Some(hold)) => {
                    let used = Amount { tokens: hold.tokens * u64::from(*size) / 255, micros: hold.micros };
                    account.settle(hold, used, now);
                    spent.push((now, used.tokens));
                }
                (_, Some(hold)) => account.release(hold),
                (_, None) => {}
            }
            assert!(account.used.tokens + account.reserved.tokens <= u64::from(*tokens) * 8);
            assert!(account.used.micros + account.reserved.micros <= 900);
            assert_eq!(account.reserved.tokens, held.iter().map(|hold| hold.tokens).sum::<u64>());
            assert_eq!(account.left(&limits), u64::from(*tokens) * 8 - account.used.tokens - account.reserved.tokens);
            let minute: u64 = spent.iter().filter(|(when, _)| when + 60_000 > now).map(|(_, tokens)| tokens).sum();
            assert!(per_minute.is_none_or(|limit| minute + account.reserved.tokens <= u64::from(limit)), "{minute}");
        }
        held.into_iter().for_each(|hold| account.release(hold));
        assert_eq!(account.reserved, Amount::default());
    });
}

#[test]
fn fuzz_price() {
    check!().with_type::<([u64; 4], [u64; 3], u8)>().cloned().for_each(|(prices, tokens, shift)| {
        let [input, output, cached, write] = prices.map(|price| price >> (shift % 64));
        let tokens = tokens.map(|tokens| tokens >> (shift % 64));
        let price = Price { input, output, cached_input: cached, cache_write: write };
        let (a, b, c) = (tokens[0] / 3, tokens[1] / 3, tokens[2] / 3);
        let cost = price.of(a, b, c, a);
        assert!(cost <= price.at_most(a + b + c, a), "a bound is a bound");
        let costs = [(a, input), (b, cached), (c, write), (a, output)].iter().any(|(n, each)| *n > 0 && *each > 0);
        assert_eq!(cost > 0, costs, "nothing is free by rounding");
    });
}
