//! Secrets: set, rotated, removed, revealed to the gateway alone.

use sandbar_api::{Code, Problem, SecretInfo, SetSecret};
use sandbar_policy::Host;

use super::{Bed, Tested, code};

const VALUE: &str = "ghp_NobodyEverSeesThis0123456789";
const HEADER: &str = "header:Authorization:Bearer {}";

fn request(hosts: &[&str], placement: &str, value: Option<&str>) -> SetSecret {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    SetSecret { hosts, placement: placement.into(), value: value.map(Into::into) }
}

impl Bed {
    async fn set(&self, value: Option<&str>) -> Result<SecretInfo, Problem> {
        self.engine.set_secret("TOKEN", request(&["API.github.com", "api.github.com"], HEADER, value)).await
    }

    fn revealed(&self) -> Option<String> {
        let gates = &self.engine.inner.gates;
        gates.secrets.reveal(&gates.vault, "TOKEN").map(|(secret, _, _)| secret.expose().to_owned())
    }
}

#[tokio::test]
async fn they_are_set_rotated_and_removed_at_once_and_outlive_the_server() -> Tested {
    let mut bed = Bed::new().await?;
    assert_eq!(bed.revealed(), None);
    assert_eq!(code(bed.set(None).await), Some(Code::BadSecret), "a new one needs a value");
    let first = bed.set(Some(VALUE)).await?;
    assert_eq!((first.hosts.as_slice(), first.placement.as_str()), (["api.github.com".to_owned()].as_slice(), HEADER));
    assert_eq!(bed.revealed().as_deref(), Some(VALUE));
    let moved = bed.engine.set_secret("TOKEN", request(&["b.org", "10.1.2.3"], "basic:git", None)).await?;
    assert_eq!((moved.created_at, moved.changed_at), (first.created_at, first.changed_at));
    assert_eq!(bed.revealed().as_deref(), Some(VALUE), "its value stays");
    bed.restart().await?;
    assert_eq!(bed.engine.secrets().await?, std::slice::from_ref(&moved));
    assert_eq!(bed.revealed().as_deref(), Some(VALUE));

    let sandbox = bed.create("a").await?.id;
    let gates = &bed.engine.inner.gates;
    let names = ["TOKEN".to_owned(), "NONE".to_owned()];
    let grants = gates.secrets.grants(&gates.vault, &sandbox, &names);
    let hosts = vec![Host::parse("b.org")?, Host::parse("10.1.2.3")?];
    assert_eq!(grants.iter().map(|grant| (&grant.name, &grant.hosts)).collect::<Vec<_>>(), [(&names[0], &hosts)]);
    assert_eq!(grants[0].placeholder, gates.vault.placeholder(&sandbox, "TOKEN"));

    let rotated = bed.set(Some("another")).await?;
    assert!(rotated.changed_at > moved.changed_at && rotated.created_at == first.created_at);
    assert_eq!(bed.revealed().as_deref(), Some("another"));
    bed.engine.remove_secret("TOKEN").await?;
    assert_eq!((bed.revealed(), bed.engine.secrets().await?), (None, vec![]));
    assert_eq!(code(bed.engine.remove_secret("TOKEN").await), Some(Code::UnknownSecret));
    bed.restart().await?;
    assert_eq!(bed.engine.secrets().await?, []);
    Ok(())
}

#[tokio::test]
async fn bad_ones_are_refused_without_a_word_of_them() -> Tested {
    let bed = Bed::new().await?;
    let good = &["api.github.com"][..];
    let many: Vec<_> = (0..33).map(|number| format!("h{number}.org")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let long = VALUE.repeat(600);
    let (line, control) = (format!("{VALUE}\n"), format!("a\u{7}{VALUE}"));
    let table: &[(SetSecret, &str)] = &[
        (request(&[], HEADER, Some(VALUE)), "no host"),
        (request(&many, HEADER, Some(VALUE)), "33 hosts"),
        (request(&["*.github.com"], HEADER, Some(VALUE)), "wildcard"),
        (request(&["https://api.github.com"], HEADER, Some(VALUE)), "without scheme"),
        (request(&["api.github.com:443"], HEADER, Some(VALUE)), "without a port"),
        (request(good, "cookie", Some(VALUE)), "`cookie`"),
        (request(good, "header:Host:{}", Some(VALUE)), "Host"),
        (request(good, HEADER, Some("")), "empty"),
        (request(good, HEADER, Some(&long)), "19200 bytes"),
        (request(good, HEADER, Some(&line)), "line break"),
        (request(good, HEADER, Some(&control)), "control character"),
    ];
    for (request, told) in table {
        let problem = bed.engine.set_secret("TOKEN", request.clone()).await.err().ok_or(*told)?;
        assert_eq!(problem.code, Code::BadSecret, "{problem}");
        assert!(problem.detail.contains(told), "{told}: {problem}");
        assert!(!format!("{problem:?} {request:?}").contains(VALUE), "{told}");
    }
    for name in ["", "lower", "1A", "A-B", "A B"] {
        let set = bed.engine.set_secret(name, request(good, HEADER, Some(VALUE))).await;
        assert_eq!(code(set), Some(Code::BadName), "{name}");
    }
    assert_eq!(bed.engine.secrets().await?, []);
    assert_eq!(bed.engine.events(0, 10, None).await?, []);
    Ok(())
}

#[tokio::test]
async fn the_value_is_in_no_event_and_no_file() -> Tested {
    let bed = Bed::new().await?;
    bed.set(Some(VALUE)).await?;
    bed.create_of("a", "secrets = [\"TOKEN\"]").await?;
    bed.set(Some(VALUE)).await?;
    bed.engine.remove_secret("TOKEN").await?;
    let events = serde_json::to_string(&bed.engine.events(0, 1000, None).await?)?;
    assert!(events.contains("secret.set") && events.contains("secret.removed"));
    assert!(!events.contains(VALUE), "{events}");
    bed.engine.shutdown().await;
    let mut looked_at = 0;
    for entry in std::fs::read_dir(&bed.home)? {
        let path = entry?.path();
        if path.is_file() {
            let bytes = std::fs::read(&path)?;
            let found = bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes());
            assert!(!found, "it is in {}", path.display());
            looked_at += 1;
        }
    }
    assert!(looked_at >= 2, "the database and the key at least");
    Ok(())
}

/// A copy of the database, without the key or with another, gives nothing away.
#[tokio::test]
async fn without_the_key_nothing_is_revealed() -> Tested {
    let mut bed = Bed::new().await?;
    bed.set(Some(VALUE)).await?;
    bed.engine.shutdown().await;
    std::fs::remove_file(bed.home.join("secret.key"))?;
    bed.engine = Bed::open(&bed.home, &bed.provider).await?;
    assert_eq!(bed.revealed(), None);
    assert_eq!(bed.engine.secrets().await?.len(), 1, "it is still known by name");
    bed.set(Some("anew")).await?;
    assert_eq!(bed.revealed().as_deref(), Some("anew"));
    Ok(())
}
