//! Tables of placements, and of requests that carry the placeholder in the agreed place or elsewhere.

use super::*;

fn place(text: &str) -> Placement {
    text.parse().unwrap_or_else(|bad: BadPlacement| panic!("{bad}"))
}

#[test]
fn written_and_shown() {
    for (text, shown) in [
        ("header:Authorization:Bearer {}", "header:Authorization:Bearer {}"),
        ("header:X-Api-Key", "header:X-Api-Key:{}"),
        ("header:Cookie:session={}; a=b:c", "header:Cookie:session={}; a=b:c"),
        ("basic:x-access-token", "basic:x-access-token"),
        ("query:key", "query:key"),
        ("body", "body"),
    ] {
        assert_eq!(place(text).to_string(), shown);
        assert_eq!(place(shown), place(text));
    }
}

#[test]
fn bad_placements() {
    for (text, cause) in [
        ("", "write `header:"),
        ("Authorization", "write `header:"),
        ("Header:X:{}", "write `header:"),
        ("header", "name the header"),
        ("header:", "name the header"),
        ("header::{}", "no header's name"),
        ("header:X Y:{}", "no header's name"),
        ("header:X\r\nY:{}", "no header's name"),
        ("header:Host:{}", "where a message goes"),
        ("header:CONTENT-LENGTH", "where a message goes"),
        ("header:transfer-encoding", "where a message goes"),
        ("header:Connection", "where a message goes"),
        ("header:Upgrade", "where a message goes"),
        ("header:TE", "where a message goes"),
        ("header:Trailer", "where a message goes"),
        ("header:Expect", "where a message goes"),
        ("header:Proxy-Authorization:Basic {}", "where a message goes"),
        ("header:X:", "exactly once"),
        ("header:X:Bearer", "exactly once"),
        ("header:X:{} {}", "exactly once"),
        ("header:X:{}\n", "visible ASCII"),
        ("header:X:\u{e4}{}", "visible ASCII"),
        ("header:X: {}", "starts or ends"),
        ("basic", "name the user"),
        ("basic:", "name the user"),
        ("basic:a:b", "no `:`"),
        ("basic:a b", "visible ASCII"),
        ("query", "name the parameter"),
        ("query:a=b", "without"),
        ("query:a b", "without"),
        ("body:", "nothing follows"),
        ("body:x", "nothing follows"),
    ] {
        let told = text.parse::<Placement>();
        assert!(told.as_ref().is_err_and(|bad| bad.cause.contains(cause) && bad.text == text), "{text}: {told:?}");
    }
}

#[test]
fn headers() {
    let bearer = place("header:Authorization:Bearer {}");
    let key = place("header:X-Api-Key:k-{}-z");
    let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
    for (placement, name, value, wanted) in [
        (&bearer, "Authorization", "Bearer PH".to_owned(), Some("Bearer se:cret".to_owned())),
        (&bearer, "authorization", "bearer PH".into(), Some("Bearer se:cret".into())),
        (&bearer, "Authorization", "Bearer  PH".into(), None),
        (&bearer, "Authorization", "Bearer PH2".into(), None),
        (&bearer, "Authorization", "Bearer ph".into(), None),
        (&bearer, "Authorization", "token PH".into(), None),
        (&bearer, "Authorization", "PH".into(), None),
        (&bearer, "Authorization", "".into(), None),
        (&bearer, "Authorization", "B\u{e4}are PH".into(), None),
        (&bearer, "X-Other", "Bearer PH".into(), None),
        (&bearer, "Authorization", basic("git:PH"), Some(basic("git:se:cret"))),
        (&bearer, "Authorization", basic("PH:"), Some(basic("se:cret:"))),
        (&bearer, "Authorization", basic("PH:x-oauth-basic"), Some(basic("se:cret:x-oauth-basic"))),
        (&bearer, "Authorization", basic("PH:PH"), Some(basic("se:cret:se:cret"))),
        (&bearer, "Authorization", basic("git:xPH"), None),
        (&bearer, "Authorization", basic("PH"), None),
        (
            &bearer,
            "Authorization",
            basic("git:PH").replace("Basic", "basic").replace('=', ""),
            Some(basic("git:se:cret")),
        ),
        (&bearer, "Authorization", "Basic !!!".into(), None),
        (&key, "x-api-key", "k-PH-z".into(), Some("k-se:cret-z".into())),
        (&key, "x-api-key", "K-PH-z".into(), None),
        (&key, "x-api-key", "PH".into(), None),
        (&key, "x-api-key", basic("git:PH"), None),
        (&place("query:PH"), "Authorization", "Bearer PH".into(), None),
        (&place("body"), "Authorization", "Bearer PH".into(), None),
    ] {
        assert_eq!(placement.swap_header(name, &value, "PH", "se:cret"), wanted, "{placement} {name}: {value}");
    }
    assert_eq!(key.swap_header("X-Api-Key", "k-PH-z", "PH", "a\r\nHost: evil"), None, "a secret cannot add a header");
}

#[test]
fn basic_has_its_own_user() {
    let placement = place("basic:me");
    let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
    for (text, wanted) in [
        ("git:PH", Some("git:secret")),
        (":PH", Some("me:secret")),
        ("PH:", Some("me:secret")),
        ("PH:x", Some("me:secret")),
        ("PH:PH", Some("me:secret")),
        ("git:other", None),
    ] {
        let swapped = placement.swap_header("Authorization", &basic(text), "PH", "secret");
        assert_eq!(swapped, wanted.map(basic), "{text}");
    }
    assert_eq!(placement.swap_header("Authorization", "Bearer PH", "PH", "secret"), None);
    assert_eq!(placement.swap_header("X-Authorization", &basic("git:PH"), "PH", "secret"), None);
}

#[test]
fn queries() {
    let placement = place("query:key");
    for (query, wanted) in [
        ("key=PH", Some("key=s%26%C3%A4%20%2B")),
        ("a=b&key=PH&c", Some("a=b&key=s%26%C3%A4%20%2B&c")),
        ("%6bey=%50H", Some("%6bey=s%26%C3%A4%20%2B")),
        ("key=PH&key=PH", Some("key=s%26%C3%A4%20%2B&key=s%26%C3%A4%20%2B")),
        ("key=PHx", None),
        ("key=", None),
        ("KEY=PH", None),
        ("other=PH", None),
        ("PH", None),
        ("%=%4&%zz", None),
        ("", None),
    ] {
        assert_eq!(placement.swap_query(query, "PH", "s&\u{e4} +").as_deref(), wanted, "{query}");
    }
    assert_eq!(place("body").swap_query("key=PH", "PH", "s"), None);
}
