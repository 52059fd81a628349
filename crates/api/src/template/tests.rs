//! What is read, what is refused and where it points, and that nothing is lost in writing it again.

use std::{collections::BTreeMap, time::Duration};

use super::{BadTemplate, Kubernetes, Legacy, Root, Runtimes, Sandboxd, Storage, Template, User, fields, parse};
use crate::{HumanDuration, HumanSize, Idle, Layer, Limits, NetworkPolicy, Requirement, SetBudget};

fn full() -> Template {
    let time = |text: &str| text.parse().ok();
    Template {
        name: "full".into(),
        description: "\"Quotes\", \\ and\nlines\t\u{7f}\u{1b} ü".into(),
        provider: "local".into(),
        root: Root::Image { path: "/images/a \"b\"".into() },
        profile: "hardened".into(),
        layers: BTreeMap::from([(Layer::NoExec, Requirement::Off), (Layer::Users, Requirement::Required)]),
        user: User::Root,
        limits: Limits {
            memory: Some(HumanSize(512 << 20)),
            cpus: Some(1.5),
            processes: Some(100),
            open_files: Some(1024),
            tmpfs: Some(HumanSize(64 << 20)),
            disk: Some(HumanSize(1 << 30)),
            output: Some(HumanSize(1_000_001)),
            wall_time: time("1h30m"),
        },
        budget: SetBudget { tokens: Some(2_000_000), usd: Some(0.25), per_minute: Some(1) },
        idle: Idle { pause_after: time("5m"), stop_after: time("1h"), delete_after: time("7d") },
        env: BTreeMap::from([("A".into(), "1".into()), ("_b2".into(), "a \"b\"\nc\\".into())]),
        network: NetworkPolicy {
            allow: vec!["@python".into(), "api.github.com GET /repos/**".into()],
            ask: vec!["*".into()],
            deny: vec!["gist.github.com".into()],
        },
        secrets: vec!["GITHUB_TOKEN".into()],
        ttl: time("30d"),
        output_retention: 1 << 20,
        max_file: 1,
        skills: Some("/srv/skills \"a\"".into()),
        kubernetes: Kubernetes::default(),
        runtimes: Runtimes {
            sandboxd: Some(Sandboxd {
                grpc_port: 1,
                rest_port: 65_535,
                root: "/a \"b\"".into(),
                token: Some("0123456789\"\\abcd".into()),
            }),
            legacy: Some(Legacy { port: 2, root: "/".into(), timeout: HumanDuration(Duration::from_millis(1500)) }),
        },
    }
}

fn on_a_cluster() -> Template {
    Template {
        name: "pod".into(),
        provider: "kubernetes".into(),
        root: Root::Oci { image: "registry.example:5000/team/python@sha256:00".into() },
        kubernetes: Kubernetes {
            runtime_class: Some("gvisor".into()),
            storage: Storage::Persistent,
            storage_class: Some("fast.ssd".into()),
            recover: true,
        },
        ..Template::default()
    }
}

fn refused(text: &str) -> BadTemplate {
    parse("a", text).err().unwrap_or_else(|| panic!("it was taken: {text}"))
}

#[test]
fn a_file_says_only_what_differs_from_the_default() {
    let template = parse("a", "").unwrap_or_else(|bad| panic!("{bad}"));
    assert_eq!(template, Template { name: "a".into(), description: String::new(), ..Template::default() });
    let text = "description = \"Python\"\nlimits.cpus = 2\nlimits.memory = 1073741824\n[root]\nkind = \"image\"\npath = \"/p\"\n";
    let template = parse("python", text).unwrap_or_else(|bad| panic!("{bad}"));
    assert_eq!((template.name.as_str(), template.limits.cpus), ("python", Some(2.0)));
    assert_eq!(template.limits.memory, Some(HumanSize(1 << 30)));
    assert_eq!(template.root, Root::Image { path: "/p".into() });
    assert_eq!(template.max_file, Template::default().max_file);
}

#[test]
fn a_runtime_that_is_named_is_served_as_usual() {
    let read = |text: &str| parse("a", text).unwrap_or_else(|bad| panic!("{bad}")).runtimes;
    assert!(read("").is_empty() && read("[runtimes]").is_empty());
    let both = read("[runtimes.sandboxd]\n[runtimes.legacy]\n");
    assert_eq!(both, Runtimes { sandboxd: Some(Sandboxd::default()), legacy: Some(Legacy::default()) });
    let sandboxd = Sandboxd { grpc_port: 9090, rest_port: 8080, root: "/workspace".into(), token: None };
    let legacy = Legacy { port: 8888, root: "/workspace".into(), timeout: HumanDuration(Duration::from_secs(300)) };
    assert_eq!(both, Runtimes { sandboxd: Some(sandboxd), legacy: Some(legacy) });
}

#[test]
fn what_is_written_is_read_back() {
    for template in [full(), on_a_cluster(), Template::default()] {
        let toml = template.to_toml();
        assert_eq!(parse(&template.name, &toml), Ok(template.clone()), "{toml}");
        let json = serde_json::to_string(&template).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Template>(&json).ok(), Some(template), "{json}");
    }
    assert_eq!(full().canonical().ok(), full().canonical().ok());
    assert_ne!(full().canonical().ok(), Template { max_file: 2, ..full() }.canonical().ok());
    assert_ne!(full().canonical().ok(), Template { skills: None, ..full() }.canonical().ok());
}

#[test]
fn the_lists_of_fields_are_those_of_the_types() {
    let mut json = serde_json::to_value(full()).unwrap_or_default();
    let pod = serde_json::to_value(on_a_cluster()).unwrap_or_default();
    json["kubernetes"] = pod["kubernetes"].clone();
    json["root"]["image"] = pod["root"]["image"].clone();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys
    };
    for (value, known) in [
        (&json, &fields::FIELDS[..]),
        (&json["root"], &fields::ROOT),
        (&json["limits"], &fields::LIMITS),
        (&json["idle"], &fields::IDLE),
        (&json["runtimes"], &fields::RUNTIMES),
        (&json["runtimes"]["sandboxd"], &fields::SANDBOXD),
        (&json["runtimes"]["legacy"], &fields::LEGACY),
        (&json["kubernetes"], &fields::KUBERNETES),
    ] {
        let mut known = known.to_vec();
        known.sort_unstable();
        assert_eq!(keys(value), known);
    }
}

/// The text, the line that is wrong, and a word of what is said about it.
const MISTAKES: &[(&str, usize, &str)] = &[
    ("= 1", 1, ""),
    ("\n\ndescription = \"x", 3, ""),
    ("ttl = \"1h\"\nttl = \"2h\"\n", 2, "duplicate"),
    ("description = \"x\"\n\nmemroy = 5\n", 3, "memroy"),
    ("\nprofil = \"open\"\n", 2, "did you mean `profile`?"),
    ("\nmemory = \"1GiB\"\n", 2, "under [limits]"),
    ("delete_after = \"1h\"\n", 1, "under [idle]"),
    ("seccomp = \"off\"\n", 1, "under [layers]"),
    ("zzz = 1", 1, "there are name"),
    ("description = 5", 1, "`description`: invalid type"),
    ("\nlimits = 5", 2, "write it as [limits]"),
    ("[[limits]]\ncpu = 1", 1, "write it as [limits]"),
    ("\nroot = \"host\"", 2, "write it as [root]"),
    ("name = \"b\"", 1, "leave it out"),
    ("\nprovider = \"\"", 2, "provider"),
    ("\nprofile = \"strict\"", 2, "there are open, standard, hardened"),
    ("user = \"admin\"", 1, "expected `agent` or `root`"),
    ("[layers]\n# why\nseccmp = \"off\"", 3, "did you mean `seccomp`?"),
    ("[layers]\nseccomp = \"of\"", 2, "`layers.seccomp`: unknown variant `of`"),
    ("[layers]\nmemory = \"required\"", 2, "under [limits]"),
    ("[layers]\nusers = \"required\"\nmounts = \"off\"", 3, "without it there is no sandbox"),
    ("[layers]\nnetwork = \"optional\"", 2, "cannot be optional"),
    ("user = \"root\"\n[layers]\ncapabilities = \"required\"", 3, "package managers"),
    ("[limits]\n\nmemory = \"4095KiB\"", 3, "4MiB or more"),
    ("[limits]\nmemory = \"lots\"", 2, "`limits.memory`: `lots` is not a size"),
    ("[limits]\nmemory = true", 2, "expected a size"),
    ("[limits]\nmemory = -1", 2, "expected a size"),
    ("\nskills = \"skills\"", 2, "`skills` is not absolute"),
    ("skills = \"/a\\u0000b\"", 1, "`skills` is not absolute"),
    ("skills = \"/srv/../etc\"", 1, "a `..` in it"),
    ("skills = \"//./\"", 1, "the whole host"),
    ("skills = [\"/srv\"]", 1, "`skills`: invalid type"),
    ("\nruntimes = true", 2, "write it as [runtimes]"),
    ("root = { kind = \"oci\" }", 1, "needs `image`"),
    ("[root]\nkind = \"oci\"\nimage = \"a b\"", 3, "no image's name"),
    ("[root]\nkind = \"host\"\nimage = \"a\"", 3, "belongs to `kind = \"oci\"`"),
    ("[root]\nkind = \"oci\"\nimage = \"a\"\npath = \"/a\"", 4, "belongs to `kind = \"image\"`"),
    ("[kubernetes]\nrecover = true", 1, "leave it out"),
    ("runtime_class = \"gvisor\"", 1, "under [kubernetes]"),
    ("provider = \"kubernetes\"\n[kubernetes]\nruntime = \"gvisor\"", 3, "did you mean `runtime_class`?"),
    ("provider = \"kubernetes\"\n[kubernetes]\nruntime_class = \"gVisor\"", 3, "no object's name"),
    ("provider = \"kubernetes\"\n[idle]\npause_after = \"1h\"", 3, "does not pause pods"),
    ("provider = \"kubernetes\"\nidle.stop_after = \"1h\"\n[kubernetes]\nstorage = \"ephemeral\"", 2, "lose the files"),
    ("provider = \"kubernetes\"\n[kubernetes]\nstorage = \"ephemeral\"\nrecover = true", 4, "nothing to start over"),
    ("provider = \"kubernetes\"\n[kubernetes]\nstorage = \"ephemeral\"\nstorage_class = \"a\"", 4, "leave one"),
    ("[runtimes.sandboxed]", 1, "did you mean `sandboxd`?"),
    ("[runtimes]\nlegacy = true", 2, "write it as [runtimes.legacy]"),
    ("[runtimes.sandboxd]\n\nport = 1", 3, "there is no field of [runtimes.sandboxd] `port`"),
    ("[runtimes.legacy]\ntime = \"1s\"", 2, "did you mean `timeout`?"),
    ("[runtimes.legacy]\nport = 0", 2, "`runtimes.legacy.port` is no port"),
    ("[runtimes.legacy]\nport = 70000", 2, "`runtimes.legacy.port`: invalid value"),
    ("[runtimes.legacy]\nport = 7228", 2, "way out"),
    ("[runtimes.sandboxd]\nrest_port = 9090", 2, "is 9090, as `runtimes.sandboxd.grpc_port`"),
    ("[runtimes.sandboxd]\n[runtimes.legacy]\nport = 8080", 3, "is 8080, as `runtimes.sandboxd.rest_port`"),
    ("[runtimes.legacy]\nroot = \"app\"", 2, "`runtimes.legacy.root` is not an absolute path"),
    ("[runtimes.sandboxd]\nroot = \"/a/../b\"", 2, "without `..`"),
    ("[runtimes.sandboxd]\ntoken = \"short\"", 2, "16 to 1024 printable characters"),
    ("[runtimes.sandboxd]\ntoken = \"sixteen and blanks\"", 2, "without blanks"),
    ("[runtimes.legacy]\ntimeout = 0", 2, "`runtimes.legacy.timeout`"),
    ("limits.cpus = 0", 1, "more than 0"),
    ("limits.cpus = -1.0", 1, "more than 0"),
    ("limits.cpus = nan", 1, "more than 0"),
    ("limits.cpus = inf", 1, "more than 0"),
    ("limits.cpus = 1024.1", 1, "at most 1024"),
    ("limits.cpu = 1", 1, "did you mean `cpus`?"),
    ("limits = { cpus = 1, processes = 7 }", 1, "8 to 4194304"),
    ("[limits]\nprocesses = 4194305", 2, "8 to 4194304"),
    ("[limits]\nprocesses = -1", 2, "limits.processes"),
    ("[limits]\nopen_files = 15", 2, "16 to 1048576"),
    ("[limits]\nopen_files = 1048577", 2, "16 to 1048576"),
    ("[limits]\ntmpfs = \"63KiB\"", 2, "64KiB or more"),
    ("[limits]\ndisk = \"15MiB\"", 2, "16MiB or more"),
    ("[limits]\noutput = 0", 2, "1 byte"),
    ("[limits]\nwall_time = \"0s\"", 2, "zero"),
    ("[limits]\nwall_tim = \"1s\"", 2, "did you mean `wall_time`?"),
    ("[budget]\ntoken = 1", 2, "did you mean `tokens`?"),
    ("[budget]\ntokens = -1", 2, "budget.tokens"),
    ("[budget]\nusd = -0.5", 1, "not a budget in dollars"),
    ("budget = 5", 1, "write it as [budget]"),
    ("[idle]\npause_after = \"0s\"", 2, "zero"),
    ("[idle]\nstop_after = \"1m\"\npause_after = \"1m\"", 2, "not after `idle.pause_after`"),
    ("[idle]\npause_after = \"2m\"\n\ndelete_after = \"1m\"", 4, "not after `idle.pause_after`"),
    ("[idle]\nstop_after = \"2m\"\ndelete_after = \"2m\"", 3, "not after `idle.stop_after`"),
    ("[env]\nA = \"1\"\n\"1x\" = \"\"", 3, "`1x` cannot be set"),
    ("[env]\nA = 1", 2, "`env.A`: invalid type"),
    ("[network]\nallow = [\"a.org\"]\nask = [\"https://b.org\"]", 3, "not a rule"),
    ("[network]\nalow = [\"a.org\"]", 2, "did you mean `allow`?"),
    ("[network]\nallow = \"a.org\"", 2, "network.allow"),
    ("allow = [\"a.org\"]", 1, "write it under [network]"),
    ("\nsecrets = [\"lower\"]", 2, "cannot be the name of a secret"),
    ("\nttl = \"0s\"", 2, "leave it out"),
    ("\nttl = \"soon\"", 2, "`soon` is not a duration"),
    ("[root]\nkind = \"image\"\npath = \"relative\"", 3, "not absolute"),
    ("[root]\nkind = \"imag\"", 2, "did you mean `image`?"),
    ("[root]\nkind = \"host\"\npath = \"/a\"", 3, "leave it out"),
    ("\n[root]\nkind = \"image\"", 2, "needs `path`"),
    ("\n[root]\npath = \"/a\"", 2, "no `kind`"),
    ("output_retention = -1", 1, "output_retention"),
    ("ttl = \"1h\"\nlimits = {\n", 2, ""),
];

#[test]
fn every_mistake_points_at_its_line() {
    for (text, line, word) in MISTAKES {
        let bad = refused(text);
        assert_eq!(bad.line, Some(*line), "{text}\n{bad}");
        assert!(bad.cause.contains(word), "{text}\n{bad}");
        assert!(!bad.cause.is_empty() && !bad.cause.ends_with('.') && !bad.cause.contains('\n'), "{bad}");
    }
    let bad = parse("A B", "").err().unwrap_or_else(|| panic!("a file's name is a template's"));
    assert_eq!(bad.line, None);
}

#[test]
fn what_is_just_enough_is_taken() {
    for text in [
        "[limits]\nmemory = \"4MiB\"\ncpus = 0.001\nprocesses = 8\nopen_files = 16\ntmpfs = \"64K\"\ndisk = \"16M\"\noutput = 1",
        "[limits]\ncpus = 1024\nprocesses = 4194304\nopen_files = 1048576\nwall_time = \"1ms\"",
        "[idle]\npause_after = \"1m\"\ndelete_after = \"2m\"",
        "[layers]\nmounts = \"required\"\nseccomp = \"optional\"\nlandlock = \"off\"",
        "user = \"root\"",
        "profile = \"open\"\nuser = \"root\"\n[layers]\ncapabilities = \"off\"",
        "name = \"a\"",
    ] {
        if let Err(bad) = parse("a", text) {
            panic!("{text}\n{bad}");
        }
    }
}

/// Cuts and splices of what is nearly right: whatever the text, an answer comes, and a line it names is there.
#[test]
fn any_text_gets_an_answer() {
    let full = full().to_toml();
    let mut texts: Vec<&str> = MISTAKES.iter().map(|(text, ..)| *text).collect();
    texts.push(&full);
    let mut state = 7_u64;
    let mut roll = |sides: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % sides.max(1)
    };
    for _ in 0..3000 {
        let (head, tail) = (texts[roll(texts.len())], texts[roll(texts.len())]);
        let cut = |text: &str, at: usize| String::from_utf8_lossy(&text.as_bytes()[..at]).into_owned();
        let mut text = cut(head, roll(head.len() + 1));
        text.push(['\0', '\n', '"', '[', ']', '=', '.', 'ü', '\u{2028}', '\r'][roll(10)]);
        text += &cut(tail, roll(tail.len() + 1));
        if let Err(BadTemplate { line: Some(line), .. }) = parse("full", &text) {
            assert!((1..=text.lines().count().max(1)).contains(&line), "{line}: {text:?}");
        }
    }
    for deep in ["a.".repeat(5000), "[".repeat(5000), "a={".repeat(5000), "env=".to_owned() + &"[".repeat(5000)] {
        assert!(parse("a", &deep).is_err());
    }
}
