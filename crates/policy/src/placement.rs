//! Where in a request a secret may stand: `header:NAME:FORMAT`, `basic:USER`, `query:NAME`, `body`; and putting it there.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::{Deserialize, Serialize};

/// Clients differ about padding; what is sent has it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// They say where a message goes or ends: a secret there would change the request, not authenticate it.
const FORBIDDEN: [&str; 9] =
    ["host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no place for a secret: {cause}", .text.escape_debug())]
pub struct BadPlacement {
    pub text: String,
    pub cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// A header whose value is the format with `{}` in the place of the secret: `header:Authorization:Bearer {}`. The
    /// format defaults to `{}`. Not Host, Content-Length, Transfer-Encoding, Connection and their like.
    Header { name: String, format: String },
    /// `Authorization: Basic` with this user and the secret as password; also found inside what a client encoded itself.
    Basic { user: String },
    /// The value of a query parameter.
    Query { name: String },
    /// Anywhere in the request's body.
    Body,
}

impl Placement {
    /// The header's value with the secret in it, if this header is the agreed place and the placeholder is what stands
    /// there. In Authorization it may also be the user or the password of `Basic`, as git, npm and pip send tokens.
    /// Nothing if the secret would break the header.
    pub fn swap_header(&self, name: &str, value: &str, placeholder: &str, secret: &str) -> Option<String> {
        let authorization = name.eq_ignore_ascii_case("authorization");
        match self {
            Self::Header { name: wanted, format } if name.eq_ignore_ascii_case(wanted) => {
                let (before, after) = format.split_once("{}")?;
                let found = value.split_at_checked(before.len()).is_some_and(|(start, rest)| {
                    same_start(start, before, authorization) && rest.strip_suffix(after) == Some(placeholder)
                });
                match found {
                    true => (!secret.chars().any(char::is_control)).then(|| format!("{before}{secret}{after}")),
                    false if authorization => swap_basic(value, placeholder, secret, None),
                    false => None,
                }
            }
            Self::Basic { user } if authorization => swap_basic(value, placeholder, secret, Some(user)),
            _ => None,
        }
    }

    /// The query (without `?`) with the secret as value of the agreed parameter, wherever that is the placeholder.
    pub fn swap_query(&self, query: &str, placeholder: &str, secret: &str) -> Option<String> {
        let Self::Query { name } = self else { return None };
        let mut swapped = false;
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((key, value)) if decode(key) == name.as_bytes() && decode(value) == placeholder.as_bytes() => {
                swapped = true;
                format!("{key}={}", encode(secret))
            }
            _ => pair.to_owned(),
        });
        let pairs: Vec<_> = pairs.collect();
        swapped.then(|| pairs.join("&"))
    }
}

/// The scheme of Authorization is written in any case.
fn same_start(found: &str, wanted: &str, authorization: bool) -> bool {
    let scheme = wanted.find(' ').filter(|_| authorization).unwrap_or(0);
    found.is_char_boundary(scheme)
        && found[..scheme].eq_ignore_ascii_case(&wanted[..scheme])
        && found[scheme..] == wanted[scheme..]
}

/// With a user of the operator's, the secret is the password and that user takes the placeholder's or an empty place.
fn swap_basic(value: &str, placeholder: &str, secret: &str, own_user: Option<&str>) -> Option<String> {
    let (user, password) = read_basic(value)?;
    if user != placeholder && password != placeholder {
        return None;
    }
    let swap = |found: &str| if found == placeholder { secret.to_owned() } else { found.to_owned() };
    Some(match own_user {
        None => write_basic(&swap(&user), &swap(&password)),
        Some(own) if user == placeholder || user.is_empty() => write_basic(own, secret),
        Some(_) => write_basic(&user, secret),
    })
}

fn read_basic(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64.decode(encoded.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

fn write_basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:{password}")))
}

/// What a server reads; what is not rightly encoded stays as it is.
fn decode(text: &str) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (value, used) = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => (u8::try_from(high * 16 + low).unwrap_or(b'%'), 2),
            (b'+', ..) => (b' ', 0),
            (byte, ..) => (*byte, 0),
        };
        decoded.push(value);
        rest = &after[used..];
    }
    decoded
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

impl std::str::FromStr for Placement {
    type Err = BadPlacement;
    fn from_str(text: &str) -> Result<Self, BadPlacement> {
        read(text).map_err(|cause| BadPlacement { text: text.to_owned(), cause })
    }
}

fn read(text: &str) -> Result<Placement, String> {
    let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
    match (kind, rest.filter(|rest| !rest.is_empty())) {
        ("header", Some(rest)) => {
            let (name, format) = rest.split_once(':').unwrap_or((rest, "{}"));
            check_header(name)?;
            check_format(format)?;
            Ok(Placement::Header { name: name.to_owned(), format: format.to_owned() })
        }
        ("header", None) => Err("name the header: `header:Authorization:Bearer {}`".into()),
        ("basic", Some(user)) if user.contains(':') => Err("a user name has no `:` in it".into()),
        ("basic", Some(user)) if !user.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("a user name is of visible ASCII characters".into())
        }
        ("basic", Some(user)) => Ok(Placement::Basic { user: user.to_owned() }),
        ("basic", None) => Err("name the user: `basic:x-access-token`".into()),
        ("query", Some(name)) if name.bytes().any(|b| !b.is_ascii_graphic() || b"&=#+%?".contains(&b)) => {
            Err("a parameter's name is of visible ASCII characters without `&=#+%?`".into())
        }
        ("query", Some(name)) => Ok(Placement::Query { name: name.to_owned() }),
        ("query", None) => Err("name the parameter: `query:key`".into()),
        ("body", _) if rest.is_none() => Ok(Placement::Body),
        ("body", _) => Err("nothing follows `body`".into()),
        _ => Err("write `header:NAME:FORMAT`, `basic:USER`, `query:NAME` or `body`".into()),
    }
}

fn check_header(name: &str) -> Result<(), String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("`{}` is no header's name: write `header:Authorization:Bearer {{}}`", name.escape_debug()));
    }
    let lower = name.to_ascii_lowercase();
    if FORBIDDEN.contains(&lower.as_str()) || lower.starts_with("proxy-") {
        return Err(format!(
            "`{name}` says where a message goes or how it ends: use a header that is the server's own"
        ));
    }
    Ok(())
}

fn check_format(format: &str) -> Result<(), String> {
    if format.matches("{}").count() != 1 {
        return Err("the format has `{}` exactly once, where the secret goes: `Bearer {}`".into());
    }
    if !format.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err("the format is of visible ASCII characters and blanks".into());
    }
    if format.trim() != format {
        return Err("the format starts or ends with a blank, which a header's value cannot".into());
    }
    Ok(())
}

impl TryFrom<String> for Placement {
    type Error = BadPlacement;
    fn try_from(text: String) -> Result<Self, BadPlacement> {
        text.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> String {
        placement.to_string()
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header { name, format } => write!(f, "header:{name}:{format}"),
            Self::Basic { user } => write!(f, "basic:{user}"),
            Self::Query { name } => write!(f, "query:{name}"),
            Self::Body => f.write_str("body"),
        }
    }
}

#[cfg(test)]
mod tests;
