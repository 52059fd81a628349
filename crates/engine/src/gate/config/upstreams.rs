//! `[upstream]`, `[model]` and `[alias]` of `gateway.toml`: who is asked, for what, at which price.

use std::collections::BTreeMap;

use sandbar_api::{check, secret};
use sandbar_gateway::llm::{CapField, Catalogue, Format, Model, Upstream};
use sandbar_policy::{Host, Price};

use super::document::{Field, Mistake, Read, Section, unknown};

/// Dollars for a million tokens; more is a slip.
const DEAREST: f64 = 1e6;
const MOST_TOKENS: u64 = 100_000_000;
const LONGEST_NAME: usize = 256;
/// The most that a model of that kind is known to count for one image: a small OpenAI model counts 48,169 for its largest,
/// Anthropic's count 4,784.
const IMAGE_OPENAI: u64 = 49_152;
const IMAGE_ANTHROPIC: u64 = 6_144;

/// Says what is wrong with each, so that all can be corrected at once.
pub(super) fn read(whole: &Section<'_>, mistakes: &mut Vec<Mistake>) -> Catalogue {
    let mut catalogue = Catalogue::default();
    let upstreams = entries(whole, "upstream", mistakes);
    let models = entries(whole, "model", mistakes);
    let aliases = entries(whole, "alias", mistakes);
    for (name, field) in &upstreams {
        keep(&mut catalogue.upstreams, name, upstream(field), mistakes);
    }
    for (name, field) in &models {
        keep(&mut catalogue.models, name, model(field, &upstreams, &catalogue.upstreams), mistakes);
    }
    for (name, field) in &aliases {
        keep(&mut catalogue.aliases, name, alias(field, &models, &aliases), mistakes);
    }
    catalogue
}

fn keep<T>(into: &mut BTreeMap<String, T>, name: &str, read: Read<T>, mistakes: &mut Vec<Mistake>) {
    match read {
        Ok(value) => drop(into.insert(name.to_owned(), value)),
        Err(mistake) => mistakes.push(mistake),
    }
}

type Entries<'d> = BTreeMap<&'d str, Field<'d>>;

fn entries<'d>(whole: &Section<'d>, section: &str, mistakes: &mut Vec<Mistake>) -> Entries<'d> {
    match whole.field(section).map(|field| field.section()).transpose() {
        Ok(section) => section.iter().flat_map(Section::fields).map(|field| (field.name, field)).collect(),
        Err(mistake) => {
            mistakes.push(mistake);
            Entries::new()
        }
    }
}

fn upstream(field: &Field<'_>) -> Read<Upstream> {
    if check::name(field.name).is_err() {
        return Err(field.bad(format!(
            "`{}` cannot be the name of an upstream: use 1 to 63 of a-z, 0-9 and `-`",
            field.name.escape_debug()
        )));
    }
    let section = field.section()?;
    section.only(&["format", "url", "secret", "any_model", "cap_field"])?;
    let format = section.needed("format", "\"openai\"")?;
    let format = match format.text()? {
        "openai" => Format::OpenAi,
        "anthropic" => Format::Anthropic,
        other => return Err(format.bad(unknown("wire format", other, &["openai", "anthropic"]))),
    };
    let written = section.needed("url", "\"https://…\"")?;
    let text = written.text()?;
    let (tls, host, port, path) =
        url(text).map_err(|cause| written.bad(format!("`{}` is not usable: {cause}", text.escape_debug())))?;
    if format == Format::Anthropic && path.ends_with("/v1") {
        return Err(written.bad("for `anthropic` the path `/v1` is added: leave it out of `url`"));
    }
    let secret = section.field("secret");
    if let (Some(secret), false) = (&secret, tls) {
        return Err(secret.bad("a key only goes over TLS: begin `url` with `https://`, or leave out `secret`"));
    }
    let name = |field: Field<'_>| {
        match field.text()? {
        name if secret::check_name(name).is_ok() => Ok(name.to_owned()),
        name => Err(field.bad(format!(
            "`{}` cannot be the name of a secret: write the name, for example OPENAI_API_KEY, and set its value with `sandbar secret set`",
            name.escape_debug()
        ))),
    }
    };
    let cap = section.field("cap_field").map(|field| cap_field(&field, format)).transpose()?;
    Ok(Upstream {
        format,
        tls,
        cap: cap.unwrap_or_else(|| usual_cap(&host)),
        host,
        port,
        path,
        secret: secret.map(name).transpose()?,
        any_model: section.field("any_model").map(|field| field.flag()).transpose()?.unwrap_or(false),
    })
}

fn cap_field(field: &Field<'_>, format: Format) -> Read<CapField> {
    if format == Format::Anthropic {
        return Err(field.bad("`cap_field` is for the format `openai`, which knows two: leave it out"));
    }
    let known = [CapField::MaxTokens, CapField::MaxCompletionTokens];
    let text = field.text()?;
    let found = known.into_iter().find(|cap| cap.as_str() == text);
    found.ok_or_else(|| field.bad(unknown("field that caps the output,", text, &known.map(CapField::as_str))))
}

/// OpenAI's models that reason know only the newer field, many of the servers that speak its format only the older.
fn usual_cap(host: &Host) -> CapField {
    let openai = |name: &str| {
        let of = |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        of("openai.com") || of("openai.azure.com")
    };
    match host {
        Host::Name(name) if openai(name) => CapField::MaxCompletionTokens,
        _ => CapField::MaxTokens,
    }
}

/// Whether it is TLS, the host, the port, and the path without a slash at its end.
fn url(text: &str) -> Result<(bool, Host, u16, String), String> {
    let (scheme, rest) = text.split_once("://").ok_or("begin it with `https://`")?;
    let (tls, port) = match scheme {
        "https" => (true, 443),
        "http" => (false, 80),
        _ => return Err("begin it with `https://`".into()),
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if authority.contains('@') {
        return Err("leave out the user name: keys are kept as secrets".into());
    }
    if text.contains(['?', '#']) {
        return Err("leave out what follows the path".into());
    }
    let (host, port) = Host::parse_authority(authority, port).map_err(|bad| bad.cause)?;
    let path = path.trim_end_matches('/');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:@!$&'()*+,;=".contains(&byte);
    if !path.bytes().all(plain) {
        return Err("its path has a character that does not belong there".into());
    }
    if path.split('/').skip(1).any(|segment| matches!(segment, "" | "." | "..")) {
        return Err("its path has an empty segment, `.` or `..`".into());
    }
    Ok((tls, host, port, path.to_owned()))
}

fn model(field: &Field<'_>, written: &Entries<'_>, upstreams: &BTreeMap<String, Upstream>) -> Read<Model> {
    name(field)?;
    let section = field.section()?;
    let prices = ["input_usd", "output_usd", "cached_input_usd", "cache_write_usd"];
    section.only(&[&["upstream", "name", "max_output", "image_tokens"][..], &prices].concat())?;
    let of = section.needed("upstream", "\"…\"")?;
    let upstream = of.text()?;
    if !written.contains_key(upstream) {
        return Err(of.bad(unknown("upstream", upstream, &names(written))));
    }
    // One that is wrong itself is told of elsewhere.
    let format = upstreams.get(upstream).map_or(Format::OpenAi, |upstream| upstream.format);
    let vendor_name = section.field("name").map(|field| match field.text()? {
        name if named(name) => Ok(name.to_owned()),
        _ => Err(field.bad("`name` is what the vendor calls the model: leave it out if that is the same")),
    });
    let [input, output, cached_input, cache_write] = prices.map(|name| section.field(name).map(price).transpose());
    let (cached_input, cache_write) = (cached_input?, cache_write?);
    let price = match (input?, output?) {
        (Some(input), Some(output)) => Some(Price {
            input,
            output,
            cached_input: cached_input.unwrap_or(input),
            // Where it costs extra, at most twice as much.
            cache_write: cache_write.unwrap_or(if format == Format::Anthropic { input * 2 } else { input }),
        }),
        (None, None) if cached_input.is_none() && cache_write.is_none() => None,
        (Some(_), None) => {
            return Err(section.bad("a price says no `output_usd`: write `output_usd = 0` if it writes nothing"));
        }
        (None, _) => return Err(section.bad("a price says no `input_usd`: write it, or leave out the others")),
    };
    let count = |name: &str| section.field(name).map(|field| field.count(MOST_TOKENS)).transpose();
    let image = if format == Format::Anthropic { IMAGE_ANTHROPIC } else { IMAGE_OPENAI };
    Ok(Model {
        upstream: upstream.to_owned(),
        vendor_name: vendor_name.transpose()?,
        price,
        max_output: count("max_output")?,
        image_tokens: count("image_tokens")?.unwrap_or(image),
    })
}

/// In millionths of a dollar.
fn price(field: Field<'_>) -> Read<u64> {
    let usd = field.number()?;
    if !(0.0..=DEAREST).contains(&usd) {
        return Err(field
            .bad(format!("`{}` is not a price: write dollars for a million tokens, from 0 to {DEAREST}", field.name)));
    }
    Ok(crate::budget::micros(usd))
}

fn alias(field: &Field<'_>, models: &Entries<'_>, aliases: &Entries<'_>) -> Read<String> {
    name(field)?;
    if models.contains_key(field.name) {
        return Err(field.bad(format!("`{}` is a model: give the alias another name", field.name.escape_debug())));
    }
    let model = field.text()?;
    if models.contains_key(model) {
        return Ok(model.to_owned());
    }
    if aliases.contains_key(model) {
        return Err(field.bad(format!("`{}` is an alias itself: name the model", model.escape_debug())));
    }
    Err(field.bad(unknown("model", model, &names(models))))
}

fn names<'d>(entries: &Entries<'d>) -> Vec<&'d str> {
    entries.keys().copied().collect()
}

fn name(field: &Field<'_>) -> Read<()> {
    if named(field.name) {
        return Ok(());
    }
    Err(field.bad(format!(
        "`{}` cannot be the name of a model or alias: use 1 to {LONGEST_NAME} bytes without blanks and control characters",
        field.name.escape_debug()
    )))
}

fn named(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(|c| c.is_whitespace() || c.is_control())
}
