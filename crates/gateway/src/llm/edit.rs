//! Changes of a few top-level members, made in the text: every other byte stays as the client or the vendor wrote it.

use super::scan::{self, Object};

/// Gives members these values (as JSON): in their place where they are, at the beginning where they are not.
pub(super) fn set(bytes: &[u8], changes: &[(&str, String)]) -> Option<Vec<u8>> {
    let Object { open, members } = scan::members(bytes)?;
    let (mut splices, mut missing) = (Vec::new(), Vec::new());
    for (name, value) in changes {
        match members.iter().find(|member| member.name == *name) {
            Some(member) => splices.push((member.value.clone(), value.as_str())),
            None => missing.push(format!("{}:{value}", serde_json::Value::from(*name))),
        }
    }
    let mut inserted = missing.join(",");
    if !missing.is_empty() && !members.is_empty() {
        inserted.push(',');
    }
    splices.push((open + 1..open + 1, inserted.as_str()));
    splices.sort_by_key(|(range, _)| range.start);
    let mut edited = Vec::with_capacity(bytes.len() + 256);
    let mut done = 0;
    for (range, value) in splices {
        edited.extend_from_slice(bytes.get(done..range.start)?);
        edited.extend_from_slice(value.as_bytes());
        done = range.end;
    }
    edited.extend_from_slice(bytes.get(done..)?);
    Some(edited)
}

/// Takes a member out with the comma that belongs to it; nothing if it is not there.
pub(super) fn remove(bytes: &[u8], name: &str) -> Option<Vec<u8>> {
    let Object { members, .. } = scan::members(bytes)?;
    let index = members.iter().position(|member| member.name == name)?;
    let member = members.get(index)?;
    let range = match (index.checked_sub(1).and_then(|before| members.get(before)), members.get(index + 1)) {
        (Some(before), _) => before.value.end..member.value.end,
        (None, Some(after)) => member.key.start..after.key.start,
        (None, None) => member.key.start..member.value.end,
    };
    Some([bytes.get(..range.start)?, bytes.get(range.end..)?].concat())
}

/// The value of a member as it is written.
pub(super) fn value<'b>(bytes: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let object = scan::members(bytes)?;
    let member = object.members.iter().find(|member| member.name == name)?;
    bytes.get(member.value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Option<Vec<u8>>) -> String {
        String::from_utf8(bytes.expect("an object")).expect("text")
    }

    #[test]
    fn only_what_changes_changes() {
        let body = br#"{ "model" : "small",  "x":1.0,"t":"\u00e4" }"#;
        assert_eq!(
            text(set(body, &[("model", "\"large\"".into())])),
            r#"{ "model" : "large",  "x":1.0,"t":"\u00e4" }"#
        );
        assert_eq!(
            text(set(body, &[("cap", "5".into()), ("model", "\"m\"".into()), ("o", "{}".into())])),
            r#"{"cap":5,"o":{}, "model" : "m",  "x":1.0,"t":"\u00e4" }"#
        );
        assert_eq!(text(set(b"{}", &[("a", "1".into()), ("b", "2".into())])), r#"{"a":1,"b":2}"#);
        assert_eq!(set(b"[]", &[]), None);
    }

    #[test]
    fn a_member_goes_with_its_comma() {
        assert_eq!(text(remove(br#"{"a":1, "usage":null}"#, "usage")), r#"{"a":1}"#);
        assert_eq!(text(remove(br#"{"usage" : null , "a":1}"#, "usage")), r#"{"a":1}"#);
        assert_eq!(text(remove(br#"{"a":1,"usage":null,"b":{"usage":2}}"#, "usage")), r#"{"a":1,"b":{"usage":2}}"#);
        assert_eq!(text(remove(br#"{"usage":null}"#, "usage")), "{}");
        assert_eq!(remove(br#"{"a":{"usage":null}}"#, "usage"), None);
        assert_eq!(value(br#"{"a": {"b":1} }"#, "a"), Some(&br#"{"b":1}"#[..]));
    }
}
