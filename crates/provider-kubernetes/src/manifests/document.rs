//! Documents of YAML that people read before they apply them: each says first what it is for.

use std::fmt::Write as _;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Serialize;
use serde_saphyr::ser_options;

use super::Bad;

/// The output so far.
#[derive(Debug, Default)]
pub(super) struct Documents {
    text: String,
}

impl Documents {
    pub(super) fn comment(&mut self, text: &str) {
        for line in text.lines() {
            let gap = if line.is_empty() { "" } else { " " };
            let _ = writeln!(self.text, "#{gap}{line}");
        }
    }

    pub(super) fn push(&mut self, why: &str, object: &impl Serialize) -> Result<(), Bad> {
        self.text.push_str("---\n");
        self.comment(why);
        self.text.push_str(&yaml(object)?);
        Ok(())
    }

    /// An object that ends with rules, each below its reason.
    pub(super) fn push_rules(
        &mut self,
        why: &str,
        object: &impl Serialize,
        rules: &[(&str, PolicyRule)],
    ) -> Result<(), Bad> {
        self.push(why, object)?;
        self.text.push_str("rules:\n");
        for (why, rule) in rules {
            let _ = writeln!(self.text, "  # {why}");
            for line in yaml(&[rule])?.lines() {
                let _ = writeln!(self.text, "  {line}");
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

fn yaml(object: &impl Serialize) -> Result<String, Bad> {
    // Lines stay as long as they were written: what is folded is not what anybody looks for.
    let options = ser_options! { folded_wrap_chars: 100_000 };
    serde_saphyr::to_string_with_options(object, options).map_err(|error| Bad::Written(error.to_string()))
}
