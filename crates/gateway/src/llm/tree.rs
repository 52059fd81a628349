//! A request's JSON, read strictly: a member that stands twice is refused, because the vendor may read the other one.
//! Texts are borrowed, so that inline images are not copied.

use std::{borrow::Cow, cell::Cell, collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::unbounded::shown;

/// More values in one request are refused: they would take a multiple of its size in memory.
const VALUES: usize = 1 << 20;
/// Above this many members, looking for twins by comparing each with each would take long.
const FEW: usize = 16;

#[derive(Debug, PartialEq)]
pub(super) enum Node<'b> {
    Null,
    Bool(bool),
    /// A number that counts something.
    Count(u64),
    /// Any other.
    Number(f64),
    Text(Cow<'b, str>),
    List(Vec<Node<'b>>),
    Map(Vec<(Cow<'b, str>, Node<'b>)>),
}

pub(super) fn parse(bytes: &[u8]) -> Result<Node<'_>, serde_json::Error> {
    let left = Cell::new(VALUES);
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let node = Seed(&left).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(node)
}

impl<'b> Node<'b> {
    /// A member of an object; one that is `null` is as good as none.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(members) = self else { return None };
        members.iter().find(|(key, _)| key == name).map(|(_, value)| value).filter(|value| **value != Self::Null)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn members(&self) -> &[(Cow<'b, str>, Self)] {
        match self {
            Self::Map(members) => members,
            _ => &[],
        }
    }

    /// A text as JSON.
    pub(super) fn quote(text: &str) -> String {
        serde_json::Value::from(text).to_string()
    }

    /// Its `type`; empty if it has none.
    pub(super) fn kind(&self) -> &str {
        self.get("type").and_then(Self::text).unwrap_or_default()
    }
}

struct Seed<'c>(&'c Cell<usize>);

impl<'b> DeserializeSeed<'b> for Seed<'_> {
    type Value = Node<'b>;

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<Node<'b>, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| D::Error::custom(format_args!("more than {VALUES} values")))?);
        deserializer.deserialize_any(self)
    }
}

impl<'b> Visitor<'b> for Seed<'_> {
    type Value = Node<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node<'b>, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node<'b>, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node<'b>, E> {
        Ok(Node::Count(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node<'b>, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node<'b>, E> {
        Ok(Node::Number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'b str) -> Result<Node<'b>, E> {
        Ok(Node::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node<'b>, E> {
        Ok(Node::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<Node<'b>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Seed(self.0))? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'b>>(self, mut members: A) -> Result<Node<'b>, A::Error> {
        let mut map: Vec<(Cow<'b, str>, Node<'b>)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = members.next_key_seed(KeySeed)? {
            if map.len() == FEW {
                seen.extend(map.iter().map(|(key, _)| key.clone()));
            }
            let twin =
                if map.len() < FEW { map.iter().any(|(other, _)| *other == key) } else { !seen.insert(key.clone()) };
            if twin {
                return Err(A::Error::custom(format_args!("the member `{}` stands twice", shown(&key))));
            }
            map.push((key, members.next_value_seed(Seed(self.0))?));
        }
        Ok(Node::Map(map))
    }
}

struct KeySeed;

impl<'b> DeserializeSeed<'b> for KeySeed {
    type Value = Cow<'b, str>;

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<Cow<'b, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'b> Visitor<'b> for KeySeed {
    type Value = Cow<'b, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_borrowed_str<E>(self, value: &'b str) -> Result<Cow<'b, str>, E> {
        Ok(Cow::Borrowed(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cow<'b, str>, E> {
        Ok(Cow::Owned(value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_are_refused_wherever_and_however_they_are_written() {
        for body in [
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a","mod\u0065l":"b"}"#,
            r#"{"x":[{"n":1,"n":1}]}"#,
            &format!("{{{},\"k3\":0}}", (0..40).map(|n| format!("\"k{n}\":0")).collect::<Vec<_>>().join(",")),
        ] {
            let refused = parse(body.as_bytes()).expect_err(body).to_string();
            assert!(refused.contains("stands twice"), "{refused}");
        }
        assert!(parse(br#"{"x":{"n":1},"n":1}"#).is_ok());
    }

    #[test]
    fn what_is_no_json_or_too_much_of_it_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let many = format!("[{}0]", "0,".repeat(VALUES));
        for body in ["", "{", "{}x", "\u{feff}{}", "NaN", "{\"a\":1e999}", "\"\\ud800\"", &deep, &many] {
            assert!(parse(body.as_bytes()).is_err(), "{}", &body[..body.len().min(20)]);
        }
        assert!(parse(b"\"\xff\"").is_err());
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let node = parse(br#"{"a":null,"b":2,"c":-2,"type":"t"}"#).expect("JSON");
        assert_eq!(node.get("a"), None);
        assert_eq!(node.get("b"), Some(&Node::Count(2)));
        assert_eq!(node.get("c"), Some(&Node::Number(-2.0)));
        assert_eq!(node.kind(), "t");
    }
}
