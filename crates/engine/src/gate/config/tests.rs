//! What is read, what is refused and where it points; and what a change of the files does.

use std::{fs, path::Path};

use sandbar_gateway::llm::{CapField, Format, Model, Upstream};
use sandbar_policy::{Host, Price};

use super::*;

type Tested = Result<(), Box<dyn std::error::Error>>;

const FULL: &str = r#"
[network]
private = ["10.1.0.0/16", "fd00:1::/32", "127.0.0.0/8"]
dns = ["192.0.2.53:53", "[2001:db8::53]:5353"]
roots = "corporate-ca.pem"
connections = 12
[network.hosts]
"Registry.internal" = ["10.1.2.3", "fd00:1::1"]

[upstream.openai]
format = "openai"
url = "https://api.openai.com/v1/"
secret = "OPENAI_API_KEY"
any_model = true
[upstream.anthropic]
format = "anthropic"
url = "https://api.anthropic.com"
[upstream.local]
format = "openai"
url = "http://[::1]:8080"

[model."gpt-5-mini"]
upstream = "openai"
name = "gpt-5-mini-2025-08-07"
input_usd = 0.25
output_usd = 2
cached_input_usd = 0.025
cache_write_usd = 0.3
max_output = 128_000
image_tokens = 1600
[model.claude]
upstream = "anthropic"
input_usd = 3
output_usd = 15.0
[model.llama]
upstream = "local"

[alias]
fast = "gpt-5-mini"
"#;

const ROOTS: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

fn read(text: &str, home: &Path) -> (Catalogue, Settings) {
    match parse(text, home) {
        Ok(Gateway { catalogue, settings, .. }) => (catalogue, settings),
        Err(mistakes) => panic!("{mistakes:?}"),
    }
}

#[test]
fn all_that_can_be_said_is_read() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    fs::write(home.path().join("corporate-ca.pem"), ROOTS)?;
    let (catalogue, settings) = read(FULL, home.path());
    assert_eq!(
        settings.private,
        ["10.1.0.0/16".parse()?, "fd00:1::/32".parse()?, "127.0.0.0/8".parse::<ipnet::IpNet>()?]
    );
    assert_eq!(settings.dns, ["192.0.2.53:53".parse()?, "[2001:db8::53]:5353".parse()?]);
    assert_eq!(settings.extra_roots, ROOTS.as_bytes());
    assert_eq!(settings.connections, 12);
    assert_eq!(settings.hosts.get("registry.internal"), Some(&vec!["10.1.2.3".parse()?, "fd00:1::1".parse()?]));
    assert_eq!(settings.idle_timeout, Settings::default().idle_timeout);

    let openai = Upstream {
        format: Format::OpenAi,
        tls: true,
        host: Host::Name("api.openai.com".into()),
        port: 443,
        path: "/v1".into(),
        secret: Some("OPENAI_API_KEY".into()),
        any_model: true,
        cap: CapField::MaxCompletionTokens,
    };
    assert_eq!(catalogue.upstreams.get("openai"), Some(&openai));
    let local = catalogue.upstreams.get("local").ok_or("no local")?;
    assert_eq!((local.tls, local.port, local.path.as_str(), &local.secret), (false, 8080, "", &None));
    assert_eq!((&local.host, local.cap), (&Host::parse("::1")?, CapField::MaxTokens));
    let price = Price { input: 250_000, output: 2_000_000, cached_input: 25_000, cache_write: 300_000 };
    let mini = Model {
        upstream: "openai".into(),
        vendor_name: Some("gpt-5-mini-2025-08-07".into()),
        price: Some(price),
        max_output: Some(128_000),
        image_tokens: 1600,
    };
    assert_eq!(catalogue.models.get("gpt-5-mini"), Some(&mini));
    let claude = catalogue.models.get("claude").ok_or("no claude")?;
    let price = Price { input: 3_000_000, output: 15_000_000, cached_input: 3_000_000, cache_write: 6_000_000 };
    assert_eq!((claude.price, claude.image_tokens), (Some(price), 6_144));
    let llama = catalogue.models.get("llama").ok_or("no llama")?;
    assert_eq!((llama.price, llama.max_output, llama.image_tokens), (None, None, 49_152));

    Ok(())
}

#[test]
fn the_field_that_caps_is_the_one_the_host_is_known_to_obey() {
    use CapField::{MaxCompletionTokens, MaxTokens};
    for (host, written, cap) in [
        ("eu.api.openai.com", "", MaxCompletionTokens),
        ("my.openai.azure.com", "", MaxCompletionTokens),
        ("notopenai.com", "", MaxTokens),
        ("openai.com.proxy.test", "", MaxTokens),
        ("api.openai.com", "cap_field = \"max_tokens\"", MaxTokens),
        ("proxy.test", "cap_field = \"max_completion_tokens\"", MaxCompletionTokens),
    ] {
        let text = format!("[upstream.u]\nformat = \"openai\"\nurl = \"https://{host}/v1\"\n{written}");
        let (catalogue, _) = read(&text, Path::new("/"));
        assert_eq!(catalogue.upstreams.get("u").map(|upstream| upstream.cap), Some(cap), "{text}");
    }
}

#[test]
fn the_sets_that_come_with_it_are_right() {
    let sets = sets::built_in().unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    for name in ["github", "gitlab", "bitbucket", "codeberg"] {
        assert!(sets.get(name).is_some_and(|rules| !rules.is_empty()), "{name}");
    }
}

/// The text, the line that is wrong, and a word of what is said about it.
const MISTAKES: &[(&str, usize, &str)] = &[
    ("= 1", 1, ""),
    ("\n\n[network", 3, ""),
    ("[alias]\n[alias]\n", 2, "duplicate"),
    ("\n[upstreams.a]\n", 2, "did you mean `upstream`?"),
    ("\nzzz = 1", 2, "there are network, upstream, model, alias"),
    ("network = 5", 1, "write it as [network]"),
    ("\nupstream = []", 2, "write it as [upstream]"),
    ("[upstream]\nopenai = 5", 2, "write it as [upstream.openai]"),
    ("[alias]\nfast = 5", 2, "not a text"),
    ("[network]\n\nconections = 5", 3, "did you mean `connections`?"),
    ("[network]\nconnections = 0", 2, "1 to 65536"),
    ("[network]\nconnections = -1", 2, "1 to 65536"),
    ("[network]\nconnections = \"5\"", 2, "1 to 65536"),
    ("[network]\nprivate = \"10.0.0.0/8\"", 2, "not a list"),
    ("[network]\nprivate = [\n  \"10.0.0.0/8\",\n  \"10.0.0.0/99\",\n]", 4, "like `10.1.0.0/16`"),
    ("[network]\nprivate = [\"10.0.0.1\"]", 2, "write `10.0.0.1/32`"),
    ("[network]\nprivate = [\"10.1.2.3/16\"]", 2, "begins at `10.1.0.0/16`"),
    ("[network]\nprivate = [\"169.254.169.254/32\"]", 2, "link-local"),
    ("[network]\nprivate = [\"0.0.0.0/0\"]", 2, "link-local"),
    ("[network]\nprivate = [\"fe80::/64\"]", 2, "link-local"),
    ("[network]\nprivate = [\"::/0\"]", 2, "link-local"),
    ("[network]\nprivate = [\"::ffff:10.0.0.0/104\"]", 2, "IPv4 ranges as such"),
    ("[network]\nprivate = [5]", 2, "not a text"),
    ("[network]\ndns = [\"192.0.2.53\"]", 2, "write `192.0.2.53:53`"),
    ("[network]\ndns = [\"dns.example.org:53\"]", 2, "address and a port"),
    ("[network]\ndns = [\"192.0.2.53:0\"]", 2, "address and a port"),
    ("[network]\nroots = \"nowhere.pem\"", 2, "nowhere.pem cannot be used: there is no such file"),
    ("[network]\nroots = \"/\"", 2, "not a file"),
    ("[network.hosts]\n\"a.b\" = []", 2, "no address"),
    ("[network.hosts]\n\"a.b\" = \"10.0.0.1\"", 2, "not a list"),
    ("[network.hosts]\n\"a.b\" = [\"c.d\"]", 2, "not an address"),
    ("[network.hosts]\n\"10.0.0.1\" = [\"10.0.0.2\"]", 2, "only names"),
    ("[network.hosts]\n\"a b\" = [\"10.0.0.2\"]", 2, "not a host"),
    ("[network.hosts]\n\"a.b\" = [\"10.0.0.2\"]\n\"A.b\" = [\"10.0.0.2\"]", 2, "twice"),
    ("[upstream.OpenAI]\nformat = \"openai\"\nurl = \"https://a.b\"", 1, "name of an upstream"),
    ("\n[upstream.a]\nurl = \"https://a.b\"", 2, "says no `format`"),
    ("\n[upstream.a]\nformat = \"openai\"", 2, "says no `url`"),
    ("[upstream.a]\nformat = \"open-ai\"\nurl = \"https://a.b\"", 2, "did you mean `openai`?"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"a.b\"", 3, "begin it with `https://`"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"ftp://a.b\"", 3, "begin it with `https://`"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://\"", 3, "empty"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://u:p@a.b\"", 3, "leave out the user name"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b/v1?x=y\"", 3, "leave out what follows the path"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b:0/v1\"", 3, "1 to 65535"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b/../v1\"", 3, "`..`"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b/a b\"", 3, "does not belong"),
    ("[upstream.a]\nformat = \"anthropic\"\nurl = \"https://a.b/v1\"", 3, "leave it out of `url`"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"http://a.b\"\nsecret = \"KEY\"", 4, "a key only goes over TLS"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b\"\nsecret = \"sk-123\"", 4, "sandbar secret set"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b\"\nany_model = 1", 4, "`true` or `false`"),
    ("[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b\"\ncap_field = 5", 4, "not a text"),
    (
        "[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b\"\ncap_field = \"max_token\"",
        4,
        "did you mean `max_tokens`?",
    ),
    (
        "[upstream.a]\nformat = \"anthropic\"\nurl = \"https://a.b\"\ncap_field = \"max_tokens\"",
        4,
        "is for the format `openai`",
    ),
    (
        "[upstream.a]\nformat = \"openai\"\nurl = \"https://a.b\"\nkey = \"KEY\"",
        4,
        "there is no field of [upstream.a] `key`",
    ),
    ("[model.m]\nmax_output = 5", 1, "says no `upstream`"),
    (
        "[model.m]\nupstream = \"opnai\"\n[upstream.openai]\nformat = \"openai\"\nurl = \"https://a.b\"",
        2,
        "did you mean `openai`?",
    ),
    ("[model.m]\nupstream = \"a\"", 2, "no other either"),
    ("[model.\"a b\"]\nupstream = \"a\"", 1, "without blanks"),
    ("[alias]\nfast = \"m\"", 2, "there is no model `m`"),
];

/// After an upstream `u` and a model `m`, on seven lines.
const MISTAKES_BELOW: &[(&str, usize, &str)] = &[
    ("input_usd = -1", 8, "from 0 to 1000000"),
    ("input_usd = nan", 8, "from 0 to 1000000"),
    ("input_usd = inf", 8, "from 0 to 1000000"),
    ("input_usd = 1e7", 8, "from 0 to 1000000"),
    ("input_usd = \"5\"", 8, "not a number"),
    ("output_usd = 5", 6, "says no `input_usd`"),
    ("input_usd = 5", 6, "write `output_usd = 0`"),
    ("cached_input_usd = 5", 6, "says no `input_usd`"),
    ("max_output = 0", 8, "1 to 100000000"),
    ("image_tokens = 1.5", 8, "1 to 100000000"),
    ("input_us = 5", 8, "did you mean `input_usd`?"),
    ("name = \"\"", 8, "what the vendor calls"),
    ("[alias]\nm = \"m\"", 9, "is a model"),
    ("[alias]\na = \"m\"\nb = \"a\"", 10, "is an alias itself"),
    ("[alias]\na = \"mm\"", 9, "did you mean `m`?"),
];

const ABOVE: &str = "[upstream.u]\nformat = \"openai\"\nurl = \"https://a.b\"\n\n\n[model.m]\nupstream = \"u\"\n";

fn mistakes(text: &str) -> Vec<Mistake> {
    match parse(text, Path::new("/nowhere-at-all")) {
        Ok(_) => panic!("it was taken: {text}"),
        Err(mistakes) => mistakes,
    }
}

#[test]
fn every_mistake_points_at_its_line() {
    let below = MISTAKES_BELOW.iter().map(|(text, line, word)| (format!("{ABOVE}{text}"), *line, *word));
    let all = MISTAKES.iter().map(|(text, line, word)| ((*text).to_owned(), *line, *word)).chain(below);
    for (text, line, word) in all {
        let [mistake] = &mistakes(&text)[..] else { panic!("{text}: {:?}", mistakes(&text)) };
        assert_eq!(mistake.line, Some(line), "{text}\n{mistake:?}");
        let cause = &mistake.cause;
        assert!(cause.contains(word), "{text}\n{mistake:?}");
        assert!(!cause.is_empty() && !cause.ends_with('.') && !cause.contains('\n'), "{mistake:?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let found = mistakes("[alias]\na = \"b\"\n[network]\ndns = [\"x\", \"y\"]\n[upstream.u]\nformat = 5\n");
    let lines: Vec<_> = found.iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, [Some(2), Some(4), Some(4), Some(6)], "{found:?}");
}

#[test]
fn mistakes_in_sets_point_at_their_line_too() {
    for (text, line, word) in [
        ("Python = [\"a.b\"]", 1, "name of a set"),
        ("\na = \"a.b\"", 2, "not a list"),
        ("a = [\n\"a.b\",\n\"https://a.b\",\n]", 3, "leave out `https://`"),
        ("a = [\"a.b\"]\nb = [\"@a\"]", 2, "cannot name another, `@a`"),
        ("a = [5]", 1, "not a text"),
        ("[a]\nb = [\"c.d\"]", 1, "not a list"),
        ("a = [", 1, ""),
    ] {
        let found = sets::read(text).err().unwrap_or_default();
        let [mistake] = &found[..] else { panic!("{text}: {found:?}") };
        assert_eq!(mistake.line, Some(line), "{text}\n{mistake:?}");
        assert!(mistake.cause.contains(word), "{text}\n{mistake:?}");
    }
    let own = sets::read("github = []\nmine = [\"A.b:443\", \"*.c.d GET /x\"]").unwrap_or_default();
    assert_eq!(own.get("mine").map(Vec::as_slice), Some(&["a.b:443".to_owned(), "*.c.d GET /x".into()][..]));
    assert_eq!(own.get("github"), Some(&vec![]));
}

/// Cuts and splices of what is nearly right: whatever the text, an answer comes, and a line it names is there.
#[test]
fn any_text_gets_an_answer() {
    let mut texts: Vec<&str> = MISTAKES.iter().chain(MISTAKES_BELOW).map(|(text, ..)| *text).collect();
    texts.extend([FULL, FULL, FULL, ABOVE, include_str!("../sets.toml")]);
    let mut dice = crate::store::suite::Dice(11);
    let mut roll = |sides: usize| usize::try_from(dice.roll(sides.max(1) as u64)).unwrap_or(0);
    for _ in 0..3000 {
        let (head, tail) = (texts[roll(texts.len())], texts[roll(texts.len())]);
        let cut = |text: &str, at: usize| String::from_utf8_lossy(&text.as_bytes()[..at]).into_owned();
        let mut text = cut(head, roll(head.len() + 1));
        text.push(['\0', '\n', '"', '[', ']', '=', '.', 'ü', '\u{2028}', '\r'][roll(10)]);
        text += &cut(tail, roll(tail.len() + 1));
        let found = parse(&text, Path::new("/nowhere-at-all")).err().into_iter().flatten();
        for mistake in found.chain(sets::read(&text).err().into_iter().flatten()) {
            assert!(mistake.line.is_none_or(|line| (1..=text.lines().count().max(1)).contains(&line)), "{text:?}");
        }
    }
    for deep in ["a.".repeat(5000), "[".repeat(5000), "a={".repeat(5000), "alias=".to_owned() + &"[".repeat(5000)] {
        assert!(parse(&deep, Path::new("/")).is_err() && sets::read(&deep).is_err());
    }
}

/// Looks now, as it would in a second.
fn now(config: &Config) -> Arc<Loaded> {
    config.next_look.store(0, Ordering::Relaxed);
    config.current()
}

#[test]
fn a_change_takes_effect_and_a_mistake_does_not() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let gateway = home.path().join(GATEWAY);
    let config = Config::open(home.path())?;
    let first = config.current();
    assert_eq!((first.generation, first.catalogue.models.len()), (1, 0), "files that are not there are empty");
    assert!(first.sets.contains_key("github"));

    fs::write(&gateway, ABOVE)?;
    assert_eq!(config.current().generation, 1, "within a second nobody looks");
    let second = now(&config);
    assert_eq!((second.generation, second.catalogue.models.len()), (2, 1));
    assert_eq!(now(&config).generation, 2);
    fs::write(&gateway, ABOVE)?;
    assert_eq!(now(&config).generation, 2, "the same once more is no change");

    fs::write(&gateway, format!("{ABOVE}[alias]\nfast = \"n\""))?;
    let third = now(&config);
    assert_eq!((third.generation, third.catalogue.models.len()), (2, 1), "what was read before holds");
    let told = format!("{}:9: there is no model `n`: there are m.", gateway.display());
    assert_eq!(third.errors, [told]);
    fs::write(home.path().join(SETS), "github = [\"mirror.internal\"]\nmine = [\"a.b\"]")?;
    assert_eq!(now(&config).sets.get("mine"), None, "all or nothing");

    fs::write(&gateway, format!("{ABOVE}[alias]\nfast = \"m\""))?;
    let fourth = now(&config);
    assert_eq!((fourth.generation, &fourth.errors), (3, &vec![]));
    assert_eq!(fourth.sets.get("github"), Some(&vec!["mirror.internal".to_owned()]));
    assert!(fourth.sets.contains_key("gitlab") && fourth.sets.contains_key("mine"));
    fs::remove_file(&gateway)?;
    assert_eq!(now(&config).catalogue.models.len(), 0);
    Ok(())
}

#[test]
fn a_change_of_the_roots_is_seen() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let roots = home.path().join("ca.pem");
    fs::write(&roots, ROOTS)?;
    fs::write(home.path().join(GATEWAY), "[network]\nroots = \"ca.pem\"")?;
    let config = Config::open(home.path())?;
    assert_eq!(now(&config).generation, 1);
    let more = ROOTS.repeat(2);
    fs::write(&roots, &more)?;
    let changed = now(&config);
    assert_eq!((changed.generation, changed.settings.extra_roots.as_slice()), (2, more.as_bytes()));
    fs::write(&roots, "nothing")?;
    let kept = now(&config);
    assert_eq!((kept.generation, kept.settings.extra_roots.as_slice()), (2, more.as_bytes()));
    assert!(kept.errors[0].contains("gateway.toml:2: ") && kept.errors[0].contains("no PEM certificate"), "{kept:?}");
    fs::write(&roots, &more)?;
    let again = now(&config);
    assert_eq!((again.generation, again.errors.len()), (2, 0), "as it was");
    Ok(())
}

#[test]
fn a_start_with_mistakes_is_refused() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    fs::write(home.path().join(GATEWAY), "[model.m]\nupstream = \"x\"")?;
    fs::write(home.path().join(SETS), [0xff])?;
    match Config::open(home.path()) {
        Err(OpenError::Config(errors)) => {
            assert_eq!(errors.len(), 2, "{errors:?}");
            assert!(errors[0].contains("gateway.toml:2: there is no upstream `x`"), "{errors:?}");
            assert!(errors[1].contains("sets.toml: it cannot be read: it is not UTF-8"), "{errors:?}");
        }
        other => panic!("{:?}", other.map(|_| "it was taken")),
    }
    fs::write(home.path().join(SETS), vec![b' '; (LARGEST + 1) as usize])?;
    assert!(matches!(Config::open(home.path()), Err(OpenError::Config(errors)) if errors[1].contains("1024 KiB")));
    fs::remove_file(home.path().join(SETS))?;
    fs::create_dir(home.path().join(SETS))?;
    assert!(matches!(Config::open(home.path()), Err(OpenError::Config(errors)) if errors[1].contains("not a file")));
    Ok(())
}

#[test]
fn roots_lie_beside_the_file_itself() -> Tested {
    let (theirs, home) = (sandbar_test_harness::scratch()?, sandbar_test_harness::scratch()?);
    fs::write(theirs.path().join("ca.pem"), ROOTS)?;
    fs::write(theirs.path().join(GATEWAY), "[network]\nroots = \"ca.pem\"")?;
    std::os::unix::fs::symlink(theirs.path().join(GATEWAY), home.path().join(GATEWAY))?;
    assert_eq!(Config::open(home.path())?.current().settings.extra_roots, ROOTS.as_bytes());
    Ok(())
}
