//! Small policies and what they decide; what is found wrong with others.

use super::*;

use Effect::{Allow, Ask, Deny};
use Source::{Approval, Sandbox, Template};

fn sets() -> Sets {
    let set = |name: &str, rules: &[&str]| (name.to_owned(), rules.iter().map(|rule| (*rule).to_owned()).collect());
    [
        set("python", &["packages.example.org", "Files.Example.org:443"]),
        set("empty", &[]),
        set("rust", &["*.crates.example"]),
    ]
    .into()
}

type Written = (Effect, &'static str, Source);

fn policy(rules: &[Written]) -> Policy {
    let parsed: Vec<_> = rules
        .iter()
        .map(|(effect, text, source)| (*effect, Rule::parse(text).unwrap_or_else(|bad| panic!("{bad}")), *source))
        .collect();
    let rules = parsed.iter().map(|(effect, rule, source)| (*effect, rule, *source));
    Policy::compile(rules, &sets()).unwrap_or_else(|bad| panic!("{bad}"))
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap_or_else(|bad| panic!("{bad}"))
}

/// `allow RULE`, `deny`, `inspect`.
fn connect(policy: &Policy, name: &str, port: u16) -> String {
    match policy.connect(&host(name), port) {
        Verdict::Inspect => "inspect".into(),
        Verdict::Decided(decision) => show(decision),
    }
}

fn request(policy: &Policy, name: &str, method: &str, path: &str) -> String {
    show(policy.request(&host(name), 443, method, path))
}

fn show(decision: Decision) -> String {
    format!("{:?} {}", decision.effect, decision.rule.unwrap_or_default()).to_lowercase().trim().to_owned()
}

#[test]
fn hosts_and_ports() {
    let policy = policy(&[
        (Allow, "example.org", Template),
        (Allow, "*.wild.org:443,8443", Template),
        (Allow, "any.org:*", Sandbox),
        (Allow, "10.1.2.3:5000", Sandbox),
        (Allow, "[2001:db8::1]", Sandbox),
        (Allow, "@python", Sandbox),
    ]);
    for (name, port, wanted) in [
        ("example.org", 443, "allow example.org"),
        ("EXAMPLE.org", 80, "allow example.org"),
        ("example.org", 8443, "deny"),
        ("www.example.org", 443, "deny"),
        ("notexample.org", 443, "deny"),
        ("example.org.evil.net", 443, "deny"),
        ("a.wild.org", 443, "allow *.wild.org:443,8443"),
        ("a.b.c.wild.org", 8443, "allow *.wild.org:443,8443"),
        ("a.wild.org", 80, "deny"),
        ("wild.org", 443, "deny"),
        ("notwild.org", 443, "deny"),
        ("any.org", 22, "allow any.org:*"),
        ("10.1.2.3", 5000, "allow 10.1.2.3:5000"),
        ("::ffff:10.1.2.3", 5000, "allow 10.1.2.3:5000"),
        ("10.1.2.3", 443, "deny"),
        ("10.1.2.4", 5000, "deny"),
        ("2001:db8::1", 443, "allow [2001:db8::1]"),
        ("packages.example.org", 443, "allow @python → packages.example.org"),
        ("files.example.org", 443, "allow @python → files.example.org:443"),
        ("files.example.org", 80, "deny"),
    ] {
        assert_eq!(connect(&policy, name, port), wanted, "{name}:{port}");
        if port == 443 {
            assert_eq!(request(&policy, name, "GET", "/../x"), wanted, "a rule without a path is about every path");
        }
    }
}

#[test]
fn a_star_is_any_name_and_no_address() {
    let policy = policy(&[(Allow, "*", Template)]);
    assert_eq!(connect(&policy, "example.org", 443), "allow *");
    assert_eq!(connect(&policy, "localhost", 80), "allow *");
    assert_eq!(connect(&policy, "93.184.216.34", 443), "deny");
    assert_eq!(connect(&policy, "2001:db8::1", 443), "deny");
}

#[test]
fn deny_then_ask_then_allow() {
    let rules = [
        (Allow, "*", Template),
        (Ask, "*.example.org", Template),
        (Deny, "bad.example.org", Template),
        (Allow, "good.example.org", Sandbox),
        (Allow, "fine.example.org:443", Approval),
        (Allow, "bad.example.org:443", Approval),
    ];
    for rules in [rules, {
        let mut back = rules;
        back.reverse();
        back
    }] {
        let policy = policy(&rules);
        assert_eq!(connect(&policy, "bad.example.org", 443), "deny bad.example.org", "an approval is no way round it");
        assert_eq!(connect(&policy, "x.example.org", 443), "ask *.example.org");
        assert_eq!(connect(&policy, "good.example.org", 443), "ask *.example.org");
        assert_eq!(connect(&policy, "fine.example.org", 443), "allow fine.example.org:443", "an approval answers ask");
        assert_eq!(connect(&policy, "fine.example.org", 80), "ask *.example.org");
        assert_eq!(connect(&policy, "example.org", 443), "allow *");
    }
    assert_eq!(connect(&Policy::default(), "example.org", 443), "deny");
}

#[test]
fn conditions() {
    let policy = policy(&[
        (Allow, "api.org GET,HEAD /repos/**", Template),
        (Ask, "api.org POST", Template),
        (Deny, "api.org /repos/secret/**", Template),
        (Allow, "open.org", Template),
        (Deny, "open.org DELETE", Template),
        (Deny, "closed.org", Template),
        (Allow, "closed.org GET", Template),
        (Deny, "never.org GET", Template),
    ]);
    for (name, wanted) in [
        ("api.org", "inspect"),
        ("open.org", "inspect"),
        ("closed.org", "deny closed.org"),
        ("never.org", "deny"),
        ("other.org", "deny"),
    ] {
        assert_eq!(connect(&policy, name, 443), wanted, "{name}");
    }
    for (name, method, path, wanted) in [
        ("api.org", "GET", "/repos/x?y=/../z", "allow api.org get,head /repos/**"),
        ("api.org", "HEAD", "/repos", "allow api.org get,head /repos/**"),
        ("api.org", "PUT", "/repos/x", "deny"),
        ("api.org", "get", "/repos/x", "deny"),
        ("api.org", "GET", "/users", "deny"),
        ("api.org", "GET", "/repos/secret/x", "deny api.org /repos/secret/**"),
        ("api.org", "GET", "/repos/%73ecret/x", "deny api.org /repos/secret/**"),
        ("api.org", "GET", "/repos/x/../secret", "deny api.org /repos/secret/**"),
        ("api.org", "POST", "/users", "ask api.org post"),
        ("api.org", "post", "/users", "ask api.org post"),
        ("api.org", "POST", "/users//", "deny api.org /repos/secret/**"),
        ("open.org", "GET", "/a/../b", "allow open.org"),
        ("open.org", "DELETE", "/", "deny open.org delete"),
        ("open.org", "delete", "/", "deny open.org delete"),
        ("closed.org", "GET", "/", "deny closed.org"),
        ("never.org", "GET", "/", "deny never.org get"),
    ] {
        assert_eq!(request(&policy, name, method, path), wanted, "{name} {method} {path}");
    }
    let only_path = self::policy(&[(Allow, "api.org /repos/**", Template)]);
    for path in ["/repos/../x", "/repos//x", "/repos/%2e%2e/x", "/repos/%2fx", "/repos/..;/x", "*", ""] {
        assert_eq!(request(&only_path, "api.org", "GET", path), "deny", "{path}");
    }
}

#[test]
fn a_slash_at_the_end_is_no_way_round_deny_and_ask() {
    let policy = policy(&[
        (Allow, "a.org", Template),
        (Deny, "a.org /admin", Template),
        (Deny, "a.org /old/", Template),
        (Ask, "a.org /ask", Template),
        (Allow, "b.org /only", Template),
    ]);
    for (name, path, wanted) in [
        ("a.org", "/admin", "deny a.org /admin"),
        ("a.org", "/admin/", "deny a.org /admin"),
        ("a.org", "/admin/?x=/", "deny a.org /admin"),
        ("a.org", "/old", "deny a.org /old/"),
        ("a.org", "/ask/", "ask a.org /ask"),
        ("a.org", "/admin/x", "allow a.org"),
        ("a.org", "/", "allow a.org"),
        ("b.org", "/only", "allow b.org /only"),
        ("b.org", "/only/", "deny"),
    ] {
        assert_eq!(request(&policy, name, "GET", path), wanted, "{name} {path}");
    }
}

#[test]
fn an_address_is_denied_by_whatever_name_it_comes() {
    let policy = policy(&[
        (Allow, "*:*", Template),
        (Deny, "10.1.2.3:*", Template),
        (Deny, "10.1.2.4", Template),
        (Deny, "[2001:db8::1]", Sandbox),
        (Deny, "10.1.2.5 GET", Template),
        (Deny, "*.bad.org", Template),
        (Ask, "10.1.2.6", Template),
    ]);
    for (address, port, wanted) in [
        ("10.1.2.3", 5000, Some("10.1.2.3:*")),
        ("::ffff:10.1.2.3", 5000, Some("10.1.2.3:*")),
        ("64:ff9b::10.1.2.3", 5000, Some("10.1.2.3:*")),
        ("10.1.2.4", 443, Some("10.1.2.4")),
        ("10.1.2.4", 5000, None),
        ("2001:db8::1", 443, Some("[2001:db8::1]")),
        ("10.1.2.5", 443, None),
        ("10.1.2.6", 443, None),
        ("10.1.2.7", 443, None),
    ] {
        let address = address.parse().unwrap_or_else(|bad| panic!("{address}: {bad}"));
        assert_eq!(policy.denies_address(address, port).as_deref(), wanted, "{address}:{port}");
    }
}

#[test]
fn sets_that_are_wrong() {
    let compile = |text: &str, sets: &Sets| {
        let rule = Rule::parse(text).unwrap_or_else(|bad| panic!("{bad}"));
        Policy::compile([(Allow, &rule, Template)], sets).map(|_| ()).map_err(|bad| bad.to_string())
    };
    let with = |rule: &str| Sets::from([("mine".to_owned(), vec![rule.to_owned()])]);
    for (text, sets, told) in [
        ("@pyhton", sets(), "`@pyhton` is not a rule: there is no such set: did you mean `@python`?"),
        ("@zzzzzz", sets(), "`@zzzzzz` is not a rule: there is no such set, only `@empty`, `@python`, `@rust`"),
        ("@x", Sets::new(), "there are no sets"),
        ("@mine", with("https://x.org"), "`https://x.org` is not a rule: in the set `@mine`: a host is wanted"),
        ("@mine", with("@other"), "in the set `@mine`: a set may not name another"),
    ] {
        let got = compile(text, &sets);
        assert!(got.as_ref().is_err_and(|got| got.contains(told)), "{got:?}");
    }
    assert_eq!(compile("@python", &sets()), Ok(()));
}

#[test]
fn findings_point_at_what_is_useless() {
    let table: &[(&[Written], &[&str])] = &[
        (&[(Allow, "a.org", Template), (Ask, "b.org", Template), (Deny, "c.org", Template)], &[]),
        (&[(Allow, "*", Template), (Ask, "*.b.org", Template), (Deny, "c.b.org", Template)], &[]),
        (
            &[(Allow, "a.b.org", Template), (Deny, "*.b.org", Sandbox)],
            &["a.b.org: never used: the deny rule `*.b.org` of the sandbox covers it"],
        ),
        (
            &[(Allow, "a.org", Template), (Ask, "a.org", Template)],
            &["a.org: never used: the ask rule `a.org` says the same and goes before it"],
        ),
        (&[(Ask, "a.org", Template), (Deny, "*", Template)], &["a.org: never used: the deny rule `*` covers it"]),
        (&[(Allow, "a.org", Template), (Deny, "a.org:443", Template)], &[]),
        (&[(Allow, "a.org", Template), (Deny, "a.org GET", Template)], &[]),
        (
            &[(Allow, "a.org GET /x/y", Template), (Deny, "a.org /x/**", Template)],
            &["a.org GET /x/y: never used: the deny rule `a.org /x/**` covers it"],
        ),
        (
            &[(Allow, "a.org", Template), (Deny, "a.org /**", Template)],
            &["a.org: never used: the deny rule `a.org /**` covers it"],
        ),
        (
            &[(Allow, "a.org", Template), (Allow, "a.org", Sandbox)],
            &["a.org: said by a rule of the template too: leave one out"],
        ),
        (&[(Allow, "a.org", Template), (Allow, "a.org:443,80", Template)], &["a.org: said twice: leave one out"]),
        (
            &[(Allow, "packages.example.org", Template), (Allow, "@python", Template)],
            &["packages.example.org: said by `@python → packages.example.org` too: leave one out"],
        ),
        (
            &[(Allow, "a.b.org", Template), (Allow, "*.b.org", Template)],
            &["a.b.org: adds nothing: the allow rule `*.b.org` covers it"],
        ),
        (
            &[(Allow, "a.org", Template), (Allow, "a.org /**", Template)],
            &["a.org /**: adds nothing: the allow rule `a.org` covers it"],
        ),
        (&[(Allow, "@empty", Template)], &["@empty: the set has no rules"]),
        (&[(Allow, "@rust", Template), (Allow, "@rust", Sandbox)], &["@rust: said twice: leave one out"]),
        (&[(Allow, "@python", Template), (Ask, "*", Template)], &["@python: never used: the ask rule `*` covers it"]),
        (
            &[(Allow, "@python", Template), (Deny, "packages.example.org", Template)],
            &[
                "@python → packages.example.org: never used: the deny rule `packages.example.org` says the same and goes before it",
            ],
        ),
        (
            &[(Allow, "169.254.169.254", Template)],
            &["169.254.169.254: never used: 169.254.169.254 is link-local, where clouds keep their credentials, \
               which is never reached"],
        ),
        (&[(Allow, "10.0.0.1", Template), (Deny, "169.254.169.254", Template)], &[]),
        (&[(Allow, "a.org /y", Template), (Deny, "a.org /x/**", Template)], &[]),
        (&[(Ask, "a.org:443", Template), (Allow, "a.org:443", Approval)], &[]),
        (&[(Ask, "a.org", Template), (Allow, "a.org:443", Approval), (Allow, "a.org:443", Approval)], &[]),
        (
            &[(Deny, "a.org", Template), (Allow, "a.org:443", Approval)],
            &["a.org:443: never used: the deny rule `a.org` of the template covers it"],
        ),
    ];
    for (rules, wanted) in table {
        let found: Vec<_> =
            policy(rules).findings().into_iter().map(|found| format!("{}: {}", found.rule, found.cause)).collect();
        assert_eq!(found, *wanted, "{rules:?}");
    }
}

#[test]
fn options_are_those_of_all_rules_that_could_allow() {
    let policy = policy(&[
        (Allow, "a.b", Template),
        (Allow, "*.b:22 raw", Template),
        (Allow, "a.b ech", Sandbox),
        (Ask, "c.b ech,raw", Sandbox),
    ]);
    let options = |name, port| policy.tunnel_options(&host(name), port);
    for (name, port, ech, raw) in [
        ("a.b", 443, true, false),
        ("a.b", 22, false, true),
        ("c.b", 80, true, true),
        ("d.b", 22, false, true),
        ("d.b", 443, false, false),
    ] {
        assert_eq!(options(name, port), TunnelOptions { ech, raw }, "{name}:{port}");
    }
    assert_eq!(connect(&policy, "a.b", 443), "allow a.b", "an option is no condition");
    assert_eq!(connect(&policy, "c.b", 443), "ask c.b ech,raw");
}

#[test]
fn a_deny_rule_has_no_options() {
    let rule = Rule::parse("a.b ech").unwrap_or_else(|bad| panic!("{bad}"));
    let told = Policy::compile([(Deny, &rule, Sandbox)], &Sets::new()).map(|_| ());
    assert!(told.as_ref().is_err_and(|bad| bad.cause.contains("leave out `ech`")), "{told:?}");
    let sets = [("s".to_owned(), vec!["a.b raw".to_owned()])].into();
    let rule = Rule::parse("@s").unwrap_or_else(|bad| panic!("{bad}"));
    let policy = Policy::compile([(Deny, &rule, Sandbox)], &sets).unwrap_or_else(|bad| panic!("{bad}"));
    assert_eq!(connect(&policy, "a.b", 443), "deny @s → a.b raw", "a set says which hosts");
}

#[test]
fn a_rule_with_an_option_is_not_covered_by_one_without() {
    let found = |rules: &[Written]| policy(rules).findings().into_iter().map(|found| found.rule).collect::<Vec<_>>();
    assert_eq!(found(&[(Allow, "a.b", Sandbox), (Allow, "a.b:443 ech", Sandbox)]), Vec::<String>::new());
    assert_eq!(found(&[(Allow, "a.b", Sandbox), (Allow, "a.b ech", Sandbox)]), ["a.b"]);
    assert_eq!(found(&[(Ask, "a.b", Sandbox), (Allow, "a.b ech", Sandbox)]), Vec::<String>::new());
    assert_eq!(found(&[(Deny, "a.b", Sandbox), (Allow, "a.b ech", Sandbox)]), ["a.b ech"]);
}
