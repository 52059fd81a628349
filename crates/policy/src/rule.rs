//! Rules as people write them: `HOST[:PORTS] [METHODS] [PATH]`, `HOST[:PORTS] OPTIONS`, and named sets of them.
//!
//! `api.github.com` · `*.example.org` (any depth below, not itself) · `*` (any name; IP addresses have to be written) ·
//! `10.1.2.3` · `[2001:db8::1]`
//! `registry.internal:5000` · `example.org:443,8443` · `example.org:*`; without ports: 443 and 80
//! `api.github.com GET,HEAD /repos/**` (methods upper-case; `*` within a path segment, `**` across; conditions need TLS to be
//! terminated) · `ssh.example.org:22 raw` (options of tunnels: `ech`, `raw`, `ech,raw`) · `@python` (the rules of a set, which may not name other sets)

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    Host, TunnelOptions,
    path::{self, PathPattern, Plain},
    pattern::{Hosts, Ports},
};

/// More is no rule but a mistake.
const LONGEST: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Deny,
    Ask,
    Allow,
}

/// Where a rule comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Template,
    Sandbox,
    Approval,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a rule: {cause}", .text.escape_debug())]
pub struct BadRule {
    pub text: String,
    /// One clause without a full stop, with what to do about it.
    pub cause: String,
}

/// Named sets, each a list of rules' texts. The name without `@`: 1 to 63 of a-z 0-9 `-`.
pub type Sets = BTreeMap<String, Vec<String>>;

/// One rule, parsed; or the name of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// In normal form (blanks single, host lower-case, ports and methods in order): equal rules have equal texts.
    pub text: String,
    /// Absent in the name of a set.
    scope: Option<Scope>,
}

/// What a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) hosts: Hosts,
    pub(crate) ports: Ports,
    /// Empty: any.
    methods: BTreeSet<String>,
    path: Option<PathPattern>,
    /// Never together with methods or a path: in a tunnel no request is seen.
    pub(crate) options: TunnelOptions,
}

impl Rule {
    pub fn parse(text: &str) -> Result<Self, BadRule> {
        read(text).map_err(|cause| BadRule { text: text.to_owned(), cause })
    }

    /// The set it names, if it does.
    pub fn set(&self) -> Option<&str> {
        self.text.strip_prefix('@')
    }

    /// A rule for exactly this host and port, as an approval makes it.
    pub fn exactly(host: &Host, port: u16) -> Self {
        let (hosts, ports) = (Hosts::Exactly(host.clone()), Ports::only(port));
        Scope { hosts, ports, methods: BTreeSet::new(), path: None, options: TunnelOptions::default() }.into()
    }

    /// A rule for exactly such requests, whatever their query; no rule can be made for a path that parsers read differently.
    pub fn exactly_request(host: &Host, port: u16, method: &str, path: &str) -> Result<Self, BadRule> {
        let (hosts, ports) = (Hosts::Exactly(host.clone()), Ports::only(port));
        let make = || {
            let path = Some(PathPattern::parse(&path::literal(path))?);
            let methods = read_methods(method)?;
            Ok(Scope { hosts, ports, methods, path, options: TunnelOptions::default() }.into())
        };
        make().map_err(|cause: String| BadRule { text: format!("{host}:{port} {method} {path}"), cause })
    }

    pub(crate) fn scope(&self) -> Option<&Scope> {
        self.scope.as_ref()
    }
}

impl From<Scope> for Rule {
    fn from(scope: Scope) -> Self {
        let methods: String = scope.methods.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let mut text = format!("{}{}", scope.hosts, scope.ports);
        let path = scope.path.as_ref().map(ToString::to_string).unwrap_or_default();
        for part in [scope.options.to_string(), methods, path] {
            if !part.is_empty() {
                text = format!("{text} {part}");
            }
        }
        Self { text, scope: Some(scope) }
    }
}

impl Scope {
    /// Whether it depends on more than host and port.
    pub(crate) fn has_conditions(&self) -> bool {
        !self.methods.is_empty() || self.path.is_some()
    }

    pub(crate) fn reaches(&self, host: &Host, port: u16) -> bool {
        self.hosts.matches(host) && self.ports.matches(port)
    }

    /// Whether a request to a host and port that it reaches fulfils its conditions; `path` is absent when it is ambiguous.
    /// In doubt an allow rule does not match, the others do: what a server may take for `GET /x` is denied as that, and so
    /// is `/x/`, which most take for `/x`.
    pub(crate) fn holds(&self, effect: Effect, method: &str, path: Option<&Plain>) -> bool {
        let careful = effect != Effect::Allow;
        let same = |wanted: &String| wanted == method || careful && wanted.eq_ignore_ascii_case(method);
        let method_holds = self.methods.is_empty() || self.methods.iter().any(same);
        let fits =
            |wanted: &PathPattern, path: &Plain| wanted.matches(path) || careful && wanted.matches(&path.other_end());
        method_holds && self.path.as_ref().is_none_or(|wanted| path.map_or(careful, |path| fits(wanted, path)))
    }

    /// Whether this, in a deny or ask rule, holds wherever the other does, in any rule.
    pub(crate) fn overrides(&self, other: &Self) -> bool {
        let everything = self.path.as_ref().is_some_and(PathPattern::is_everything);
        self.covers_but_path(other) && (everything || self.covers_path(other))
    }

    /// Whether this holds wherever the other does, in rules of the same effect.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.covers_but_path(other) && self.covers_path(other) && self.options.covers(other.options)
    }

    fn covers_but_path(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty() || !other.methods.is_empty() && self.methods.is_superset(&other.methods);
        methods && self.hosts.covers(&other.hosts) && self.ports.covers(&other.ports)
    }

    fn covers_path(&self, other: &Self) -> bool {
        self.path.as_ref().is_none_or(|path| other.path.as_ref().is_some_and(|other| path.covers(other)))
    }
}

fn read(text: &str) -> Result<Rule, String> {
    if text.len() > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err("it has a control character in it: write one rule a line".into());
    }
    let mut words = text.split([' ', '\t']).filter(|word| !word.is_empty());
    let target = words.next().ok_or("it is empty: write a host, as in `example.org`")?;
    let (conditions, more) = (words.next(), words.next());
    if let Some(name) = target.strip_prefix('@') {
        return read_set(name, conditions);
    }
    if words.next().is_some() {
        return Err("it has too many parts: write `HOST[:PORTS] [METHODS] [PATH]`, lists without blanks".into());
    }
    let (hosts, ports) = read_target(target)?;
    if let Some(options) = conditions.and_then(TunnelOptions::parse) {
        return match more {
            None => Ok(Scope { hosts, ports, methods: BTreeSet::new(), path: None, options }.into()),
            Some(_) => {
                Err(format!("`{options}` is about tunnels, where no request is seen: leave out what follows it"))
            }
        };
    }
    let (methods, path) = match (conditions, more) {
        (Some(path), None) if path.starts_with('/') => (None, Some(path)),
        (Some(path), Some(_)) if path.starts_with('/') => return Err("methods stand before the path".into()),
        (methods, path) => (methods, path),
    };
    let methods = methods.map(read_methods).transpose()?.unwrap_or_default();
    let path = path.map(PathPattern::parse).transpose()?;
    Ok(Scope { hosts, ports, methods, path, options: TunnelOptions::default() }.into())
}

fn read_set(name: &str, after: Option<&str>) -> Result<Rule, String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=63).contains(&name.len()) || !name.bytes().all(plain) {
        return Err("a set's name is `@` and 1 to 63 of a-z, 0-9 and `-`".into());
    }
    if after.is_some() {
        return Err("a set's rules have their own methods and paths: nothing follows its name".into());
    }
    Ok(Rule { text: format!("@{name}"), scope: None })
}

/// `HOST[:PORTS]`
fn read_target(text: &str) -> Result<(Hosts, Ports), String> {
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(format!("a host is wanted, not a URL: leave out `{}://`", scheme.escape_debug()));
    }
    if text.parse::<ipnet::IpNet>().is_ok() && text.contains('/') {
        return Err("ranges of addresses are not matched: write each address".into());
    }
    if let Some((host, path)) = text.split_once('/') {
        return Err(format!("a blank stands before the path: `{} /{}`", host.escape_debug(), path.escape_debug()));
    }
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(format!("an IPv6 address needs brackets: `[{text}]`"));
    }
    let from = if text.starts_with('[') { text.find(']').unwrap_or(text.len()) } else { 0 };
    let (host, ports) = match text[from..].find(':') {
        Some(at) => (&text[..from + at], Ports::parse(&text[from + at + 1..])?),
        None => (text, Ports::default()),
    };
    Ok((Hosts::parse(host)?, ports))
}

fn read_methods(text: &str) -> Result<BTreeSet<String>, String> {
    let method = |method: &str| match method {
        "" => Err("a method is missing beside a comma".into()),
        "*" => Err("for any method leave out the `*`".into()),
        word if TunnelOptions::is_meant(word) => Err(format!(
            "`{}` is an option of tunnels, where no method is seen: write it in lower case and alone",
            word.to_ascii_lowercase()
        )),
        "CONNECT" => Err("CONNECT opens a connection and is judged by host and port: leave it out".into()),
        method if method.contains('/') => Err(format!("a path starts with `/`: `/{}`", method.escape_debug())),
        method if !method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') => {
            Err(format!("`{}` is no method: write `GET` or `GET,HEAD`, before the path", method.escape_debug()))
        }
        method if method.bytes().any(|byte| byte.is_ascii_lowercase()) => {
            Err(format!("methods are upper-case: write `{}`", method.to_ascii_uppercase()))
        }
        method => Ok(method.to_owned()),
    };
    text.split(',').map(method).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms() {
        let table = [
            ("api.github.com", "api.github.com"),
            ("  API.github.com\t", "api.github.com"),
            ("example.org:443,80", "example.org"),
            ("example.org:8443,443,443", "example.org:443,8443"),
            ("example.org:*", "example.org:*"),
            ("*", "*"),
            ("*:443", "*:443"),
            ("*.Example.org", "*.example.org"),
            ("*.com", "*.com"),
            ("10.1.2.3", "10.1.2.3"),
            ("[2001:DB8:0::1]:5000", "[2001:db8::1]:5000"),
            ("[::ffff:10.1.2.3]", "10.1.2.3"),
            ("api.github.com   HEAD,GET,GET  /repos/**", "api.github.com GET,HEAD /repos/**"),
            ("a.b /%7ex", "a.b /~x"),
            ("a.b M-SEARCH", "a.b M-SEARCH"),
            ("ssh.a.b:22  raw", "ssh.a.b:22 raw"),
            ("a.b raw,ech,ech", "a.b ech,raw"),
            ("*.a.b:443 ech", "*.a.b:443 ech"),
            ("@python", "@python"),
        ];
        for (text, wanted) in table {
            let rule = Rule::parse(text).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!(rule.text, wanted);
            assert_eq!(Rule::parse(&rule.text), Ok(rule), "{text}");
        }
        assert_eq!(Rule::parse("@python").map(|rule| rule.set().map(str::to_owned)), Ok(Some("python".into())));
        assert_eq!(Rule::parse("python").map(|rule| rule.set().map(str::to_owned)), Ok(None));
    }

    #[test]
    fn bad_rules() {
        let (long, name) = ("a".repeat(2049), format!("@{}", "a".repeat(64)));
        let table: &[(&str, &str)] = &[
            ("", "empty"),
            (" \t ", "empty"),
            ("a.b\nc.d", "one rule a line"),
            (&long, "longer than"),
            ("https://example.org/x", "leave out `https://`"),
            ("example.org/x", "`example.org /x`"),
            ("10.0.0.0/8", "each address"),
            ("2001:db8::1", "`[2001:db8::1]`"),
            ("*foo.org", "`*.foo.org`"),
            ("a.*.org", "whole labels"),
            ("*.*.org", "whole labels"),
            ("**", "whole labels"),
            ("*.10.1.2.3", "nothing below"),
            (".example.org", "`*.example.org`"),
            ("user@example.org", "user name"),
            ("127.1", "four numbers"),
            ("example.org.", "leave out the dot"),
            ("a_b.org", "only letters"),
            ("example.org:0", "1 to 65535"),
            ("example.org:", "1 to 65535"),
            ("example.org:http", "1 to 65535"),
            ("example.org:80-90", "list them"),
            ("example.org:80,*", "leave out the others"),
            ("[::1", "no `]`"),
            ("[::1]x", "no `]`"),
            ("a.b get", "write `GET`"),
            ("a.b GET,", "missing"),
            ("a.b GET, HEAD /x", "without blanks"),
            ("a.b * /x", "leave out the `*`"),
            ("a.b CONNECT", "judged by host and port"),
            ("a.b GET x", "starts with `/`"),
            ("a.b x/y", "`/x/y`"),
            ("a.b /x GET", "before the path"),
            ("a.b GET /x y", "too many parts"),
            ("a.b G\u{c9}T", "is no method"),
            ("a.b /x?y", "query"),
            ("a.b /../x", "`..`"),
            ("a.b ech /x", "leave out what follows"),
            ("a.b ech GET", "leave out what follows"),
            ("a.b ECH", "`ech` is an option"),
            ("a.b GET,raw", "`raw` is an option"),
            ("a.b ech,", "is an option"),
            ("a.b GET ech", "starts with `/`"),
            ("@python ech", "nothing follows"),
            ("@", "a set's name"),
            ("@Python", "a set's name"),
            (&name, "a set's name"),
            ("@python:443", "a set's name"),
            ("@python GET", "nothing follows"),
        ];
        for (text, cause) in table {
            let told = Rule::parse(text);
            assert!(told.as_ref().is_err_and(|bad| bad.cause.contains(cause) && bad.text == *text), "{text}: {told:?}");
        }
    }

    #[test]
    fn made_rules_are_written_rules() {
        let host = |text| Host::parse(text).unwrap_or_else(|bad| panic!("{bad}"));
        for (text, port, wanted) in [("a.b", 443, "a.b:443"), ("::1", 80, "[::1]:80"), ("10.0.0.1", 1, "10.0.0.1:1")] {
            let rule = Rule::exactly(&host(text), port);
            assert_eq!(rule.text, wanted);
            assert_eq!(Rule::parse(wanted), Ok(rule));
        }
        let made = Rule::exactly_request(&host("a.b"), 443, "POST", "/x/*/%7ey?q");
        assert_eq!(made.as_ref().map(|rule| rule.text.as_str()), Ok("a.b:443 POST /x/%2A/~y"));
        assert_eq!(Rule::parse("a.b:443 POST /x/%2A/~y"), made);
        assert!(Rule::exactly_request(&host("a.b"), 443, "POST", "/../x").is_err());
        assert!(Rule::exactly_request(&host("a.b"), 443, "P OST", "/x").is_err());
    }
}
