//! Which model answers: what was asked for or what the session was switched to, through aliases, at which upstream.

use super::{Catalogue, Format, Model, Upstream, refusal::Refusal};

/// How many known models an error names.
const NAMED: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selected {
    /// By which it is counted.
    pub(super) name: String,
    /// By which the vendor knows it.
    pub(super) vendor_name: String,
    pub(super) upstream_name: String,
    pub(super) upstream: Upstream,
    /// Absent where the upstream takes any.
    pub(super) model: Option<Model>,
}

pub(super) fn select(
    catalogue: &Catalogue,
    format: Format,
    asked: &str,
    switched: Option<&str>,
) -> Result<Selected, Refusal> {
    let wanted = switched.unwrap_or(asked);
    let name = catalogue.aliases.get(wanted).map_or(wanted, String::as_str);
    if let Some((model, upstream)) = configured(catalogue, name) {
        if upstream.format != format {
            return Err(other_format(name, upstream.format, format, switched.is_some()));
        }
        return Ok(Selected {
            name: name.to_owned(),
            vendor_name: model.vendor_name.clone().unwrap_or_else(|| name.to_owned()),
            upstream_name: model.upstream.clone(),
            upstream: upstream.clone(),
            model: Some(model.clone()),
        });
    }
    let mut of_format = catalogue.upstreams.iter().filter(|(_, upstream)| upstream.format == format).peekable();
    if of_format.peek().is_none() {
        return Err(Refusal::not_found(format!("no upstream that speaks {} is configured", format.as_str())));
    }
    match of_format.find(|(_, upstream)| upstream.any_model) {
        Some((upstream_name, upstream)) => Ok(Selected {
            name: name.to_owned(),
            vendor_name: name.to_owned(),
            upstream_name: upstream_name.clone(),
            upstream: upstream.clone(),
            model: None,
        }),
        None => Err(unknown(catalogue, format, wanted, switched.is_some())),
    }
}

/// What clients of this format may ask for, models and aliases.
pub(super) fn names(catalogue: &Catalogue, format: Format) -> Vec<(&str, &str)> {
    let models = catalogue.models.keys().map(|name| (name, name));
    let mut names: Vec<_> = models
        .chain(&catalogue.aliases)
        .filter_map(|(name, target)| {
            let (model, upstream) = configured(catalogue, target)?;
            (upstream.format == format).then_some((name.as_str(), model.upstream.as_str()))
        })
        .collect();
    names.sort_unstable();
    names
}

fn configured<'c>(catalogue: &'c Catalogue, name: &str) -> Option<(&'c Model, &'c Upstream)> {
    let model = catalogue.models.get(name)?;
    Some((model, catalogue.upstreams.get(&model.upstream)?))
}

fn unknown(catalogue: &Catalogue, format: Format, wanted: &str, switched: bool) -> Refusal {
    let names = names(catalogue, format);
    let known: Vec<_> = names.iter().take(NAMED).map(|(name, _)| *name).collect();
    let known = match (known.len(), names.len()) {
        (0, _) => "none is configured".into(),
        (some, all) if some < all => format!("known are {} and {} more", known.join(", "), all - some),
        _ => format!("known are {}", known.join(", ")),
    };
    let wanted: String = wanted.chars().take(200).flat_map(char::escape_debug).collect();
    let whose = if switched { ", which this session was switched to," } else { "" };
    Refusal::no_model(format!("the model `{wanted}`{whose} is not configured: {known}"))
}

fn other_format(name: &str, speaks: Format, asked: Format, switched: bool) -> Refusal {
    let (speaks, asked) = (speaks.as_str(), asked.as_str());
    if switched {
        return Refusal::field(
            "model",
            format_args!(
                "this session was switched to `{name}`, which speaks {speaks}, and this is a call in the format of {asked}"
            ),
        );
    }
    Refusal::no_model(format!("the model `{name}` speaks {speaks}: it is under /llm/{speaks}/, not /llm/{asked}/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::CapField;
    use sandbar_policy::Host;

    fn upstream(format: Format, any_model: bool) -> Upstream {
        let host = Host::Name("vendor.test".into());
        Upstream {
            format,
            tls: true,
            host,
            port: 443,
            path: String::new(),
            secret: None,
            any_model,
            cap: CapField::MaxTokens,
        }
    }

    fn model(upstream: &str, vendor_name: Option<&str>) -> Model {
        let vendor_name = vendor_name.map(str::to_owned);
        Model { upstream: upstream.into(), vendor_name, price: None, max_output: None, image_tokens: 0 }
    }

    fn catalogue(any_model: bool) -> Catalogue {
        let mut catalogue = Catalogue::default();
        catalogue.upstreams.insert("o".into(), upstream(Format::OpenAi, any_model));
        catalogue.models.insert("small".into(), model("o", Some("small-2026")));
        catalogue.models.insert("large".into(), model("o", None));
        catalogue.aliases.insert("default".into(), "small".into());
        catalogue
    }

    #[test]
    fn aliases_and_switches_lead_to_a_model() {
        let catalogue = catalogue(false);
        let found = |asked, switched| {
            select(&catalogue, Format::OpenAi, asked, switched).map(|found| (found.name, found.vendor_name))
        };
        assert_eq!(found("default", None), Ok(("small".into(), "small-2026".into())));
        assert_eq!(found("whatever", Some("default")), Ok(("small".into(), "small-2026".into())));
        assert_eq!(found("small", Some("large")), Ok(("large".into(), "large".into())));
        assert_eq!(names(&catalogue, Format::OpenAi), [("default", "o"), ("large", "o"), ("small", "o")]);
    }

    #[test]
    fn what_is_unknown_is_named_with_what_is_known() {
        let refused = select(&catalogue(false), Format::OpenAi, "huge", None).expect_err("unknown");
        assert_eq!(refused.status, 404);
        assert_eq!(refused.message, "the model `huge` is not configured: known are default, large, small");
        let any = select(&catalogue(true), Format::OpenAi, "huge", None).expect("passed on");
        assert_eq!((any.vendor_name.as_str(), any.model), ("huge", None));
        let refused = select(&catalogue(true), Format::Anthropic, "huge", None).expect_err("no upstream");
        assert_eq!(refused.message, "no upstream that speaks anthropic is configured");
    }

    #[test]
    fn a_model_of_another_format_is_not_passed_on_as_if_it_were() {
        let mut catalogue = catalogue(true);
        catalogue.upstreams.insert("a".into(), upstream(Format::Anthropic, true));
        catalogue.models.insert("poet".into(), model("a", None));
        let refused = select(&catalogue, Format::OpenAi, "poet", None).expect_err("another format");
        assert_eq!(refused.status, 404);
        assert!(refused.message.contains("/llm/anthropic/"), "{}", refused.message);
        let refused = select(&catalogue, Format::OpenAi, "small", Some("poet")).expect_err("another format");
        assert_eq!(refused.status, 400);
        assert!(refused.message.contains("switched to `poet`"), "{}", refused.message);
    }
}
