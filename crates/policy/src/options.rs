//! Options of rules: what a tunnel may carry that is refused unless a rule says so, because it hides for whom it is.

use std::fmt;

/// Of a rule, or of all rules about a host and a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TunnelOptions {
    /// TLS greetings with an encrypted part (ECH), which may ask for another server than their readable part.
    pub ech: bool,
    /// Bytes that are neither TLS nor HTTP, whatever they look like later.
    pub raw: bool,
}

const ECH: &str = "ech";
const RAW: &str = "raw";

impl TunnelOptions {
    /// Nothing where any word of the list is not an option.
    pub(crate) fn parse(list: &str) -> Option<Self> {
        let option = |sum: Self, word| match word {
            ECH => Some(Self { ech: true, ..sum }),
            RAW => Some(Self { raw: true, ..sum }),
            _ => None,
        };
        list.split(',').try_fold(Self::default(), option)
    }

    /// Whether a word of another list is one of them, in any case.
    pub(crate) fn is_meant(word: &str) -> bool {
        [ECH, RAW].into_iter().any(|option| option.eq_ignore_ascii_case(word))
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        (self.ech || !other.ech) && (self.raw || !other.raw)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self { ech: self.ech || other.ech, raw: self.raw || other.raw }
    }
}

impl fmt::Display for TunnelOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ech, self.raw) {
            (false, false) => "",
            (true, false) => ECH,
            (false, true) => RAW,
            (true, true) => "ech,raw",
        })
    }
}
