//! Isolation profiles: sets of required layers, as data files with a comment per rule (`profiles/*.toml`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Layer, Requirement};

pub const DEFAULT: &str = "standard";

const FILES: [(&str, &str); 3] = [
    ("open", include_str!("../profiles/open.toml")),
    ("standard", include_str!("../profiles/standard.toml")),
    ("hardened", include_str!("../profiles/hardened.toml")),
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The file's name.
    #[serde(default)]
    pub name: String,
    pub description: String,
    pub layers: BTreeMap<Layer, Requirement>,
}

impl Profile {
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    pub fn named(name: &str) -> Option<Self> {
        let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
        // The files are part of the program, and the test below reads each of them.
        let mut profile: Self = toml::from_str(text).ok()?;
        (*name).clone_into(&mut profile.name);
        Some(profile)
    }

    /// What the file itself says, comments included.
    pub fn text(name: &str) -> Option<&'static str> {
        FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProfileList {
    pub profiles: Vec<Profile>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_speaks_of_every_layer_and_says_why() {
        for (name, text) in FILES {
            let profile = Profile::named(name).unwrap_or_else(|| panic!("{name} cannot be read"));
            for layer in Layer::ALL.iter().filter(|layer| !layer.is_limit()) {
                let asked = profile.layers.get(layer).unwrap_or_else(|| panic!("{name} forgets {layer:?}"));
                assert!(!layer.is_essential() || *asked == Requirement::Required, "{name}: {layer:?}");
            }
            assert!(profile.layers.keys().all(|layer| !layer.is_limit()), "{name}: limits are stated by templates");
            let lines: Vec<_> = text.lines().collect();
            for (above, line) in lines.iter().zip(&lines[1..]) {
                let commented = above.starts_with('#');
                assert!(commented || !line.contains(" = \"") || line.starts_with("description"), "{name}: {line}");
            }
        }
    }

    #[test]
    fn each_is_at_least_as_tight_as_the_one_before() {
        let rank = |requirement: Requirement| match requirement {
            Requirement::Off => 0,
            Requirement::Optional => 1,
            Requirement::Required => 2,
        };
        let profiles: Vec<_> = FILES.iter().filter_map(|(name, _)| Profile::named(name)).collect();
        for pair in profiles.windows(2) {
            for (layer, asked) in &pair[0].layers {
                assert!(rank(pair[1].layers[layer]) >= rank(*asked), "{}: {layer:?}", pair[1].name);
            }
        }
    }
}
