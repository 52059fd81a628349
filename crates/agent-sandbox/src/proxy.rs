//! Whether the apiserver is reached through a proxy, and which: as `kubectl` decides it.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::Kubeconfig;

use crate::error::{Error, Result};

pub(crate) const NO_URL: &str = "it is no URL";

/// A proxy, and who we are to it.
pub(crate) enum Proxy {
    /// Asked by `CONNECT`.
    Http { uri: Uri, authorization: Option<HeaderValue> },
    /// SOCKS 5: it resolves names.
    Socks { uri: Uri, login: Option<(String, String)> },
}

/// Without the login.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Http { uri, .. } | Self::Socks { uri, .. }) = self;
        write!(f, "Proxy({uri})")
    }
}

/// What the kubeconfig says of a context's cluster holds, whatever the environment says.
pub(crate) fn named(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|known| known.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|known| known.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

/// The proxy for a cluster: the one that is named, else the environment's, unless that exempts the cluster's host.
pub(crate) fn of(
    named: Option<String>,
    cluster: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>> {
    if let Some(url) = named {
        return parse(&url, "proxy-url of the kubeconfig").map(Some);
    }
    let said = |name: &str| variable(name).filter(|value| !value.is_empty());
    let either = |upper: &str| said(upper).or_else(|| said(&upper.to_lowercase()));
    let name = if cluster.scheme_str() == Some("http") { "HTTP_PROXY" } else { "HTTPS_PROXY" };
    let Some(url) = either(name) else { return Ok(None) };
    if is_local(cluster) || is_exempt(cluster, &either("NO_PROXY").unwrap_or_default()) {
        return Ok(None);
    }
    parse(&url, name).map(Some)
}

fn parse(url: &str, from: &str) -> Result<Proxy> {
    let unusable = |why: &str| Error::BadProxy { from: from.to_owned(), why: why.to_owned() };
    // As elsewhere, what names no scheme is an HTTP proxy.
    let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = whole.parse().map_err(|_| unusable(NO_URL))?;
    let scheme = uri.scheme_str().unwrap_or_default().to_owned();
    if !["http", "socks5", "socks5h"].contains(&scheme.as_str()) {
        return Err(unusable(&format!("{scheme}:// is not supported, http:// and socks5:// are")));
    }
    let cluster = Uri::from_static("https://cluster");
    let known = intercept(&whole, "", &cluster).ok_or_else(|| unusable("it names no host"))?;
    let uri = known.uri().clone();
    if scheme == "http" {
        return Ok(Proxy::Http { uri, authorization: known.basic_auth().cloned() });
    }
    let login = known.raw_auth().map(|(name, password)| (name.to_owned(), password.to_owned()));
    let uri = match (uri.port(), uri.host()) {
        (None, Some(host)) => format!("{scheme}://{host}:1080").parse().map_err(|_| unusable(NO_URL))?,
        _ => uri,
    };
    Ok(Proxy::Socks { uri, login })
}

fn intercept(proxy: &str, exempt: &str, cluster: &Uri) -> Option<Intercept> {
    Matcher::builder().all(proxy).no(exempt).build().intercept(cluster)
}

/// The library's list knows no ports, no star that stands for addresses too or before a domain, and takes a domain that begins
/// with a dot for its own name, too.
fn is_exempt(cluster: &Uri, list: &str) -> bool {
    let host = cluster.host().unwrap_or_default();
    let port = format!(":{}", cluster.port_u16().unwrap_or(443));
    let entries = || list.split(',').map(str::trim);
    let plain = entries().map(|entry| {
        let entry = entry.strip_suffix(&port).filter(|rest| !rest.ends_with(':')).unwrap_or(entry);
        entry.strip_prefix('*').unwrap_or(entry).trim_matches(['[', ']'])
    });
    let others = plain.filter(|entry| !entry.strip_prefix('.').is_some_and(|domain| domain.eq_ignore_ascii_case(host)));
    let others: Vec<&str> = others.collect();
    entries().any(|entry| entry == "*") || intercept("http://proxy", &others.join(","), cluster).is_none()
}

/// A proxy elsewhere would look for it on its own machine.
fn is_local(cluster: &Uri) -> bool {
    let host = cluster.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "https://10.0.0.7:6443";

    fn asked(cluster: &'static str, named: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Proxy>> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        of(named.map(str::to_owned), &Uri::from_static(cluster), variable)
    }

    fn through(cluster: &'static str, named: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        match asked(cluster, named, variables).expect("a proxy or none") {
            Some(Proxy::Http { uri, .. } | Proxy::Socks { uri, .. }) => Some(uri.to_string()),
            None => None,
        }
    }

    #[test]
    fn the_kubeconfig_is_asked_before_the_environment() {
        let environment = [("HTTPS_PROXY", "http://env:3128"), ("NO_PROXY", "*")];
        assert_eq!(through(CLUSTER, None, &[]), None);
        assert_eq!(through(CLUSTER, Some("http://said:1"), &environment), Some("http://said:1/".into()));
        assert_eq!(through(CLUSTER, None, &environment[..1]), Some("http://env:3128/".into()));
        assert_eq!(through(CLUSTER, None, &[("https_proxy", "env:3128")]), Some("http://env:3128/".into()));
        assert_eq!(through(CLUSTER, None, &[("HTTP_PROXY", "http://env:3128")]), None);
        assert_eq!(through(CLUSTER, None, &[("HTTPS_PROXY", "")]), None);
        let empty = [("HTTPS_PROXY", ""), ("https_proxy", "http://env:3128"), ("NO_PROXY", "")];
        assert!(through(CLUSTER, None, &empty).is_some());
        assert_eq!(through(CLUSTER, None, &[&empty[..], &[("no_proxy", "*")]].concat()), None);
    }

    #[test]
    fn clusters_that_are_exempt_or_on_this_machine_are_reached_directly() {
        let proxy = ("HTTPS_PROXY", "http://env:3128");
        for exempt in ["*", "10.0.0.0/8", "x, 10.0.0.7", "10.0.0.7:6443"] {
            assert_eq!(through(CLUSTER, None, &[proxy, ("NO_PROXY", exempt)]), None, "{exempt}");
        }
        for exempt in [".corp.example", "corp.example", "*.corp.example", "api.corp.example:6443", "a,*"] {
            let variables = [proxy, ("no_proxy", exempt)];
            assert_eq!(through("https://api.corp.example:6443", None, &variables), None, "{exempt}");
        }
        assert_eq!(through("https://[fd00::7]:6443", None, &[proxy, ("NO_PROXY", "[fd00::7]:6443")]), None);
        assert!(through(CLUSTER, None, &[proxy, ("NO_PROXY", "10.0.0.7:443")]).is_some(), "another port");
        assert!(through("https://corp.example", None, &[proxy, ("NO_PROXY", ".corp.example")]).is_some());
        // It is the cluster's host that is exempt, not the proxy's.
        assert!(through(CLUSTER, None, &[proxy, ("NO_PROXY", "env,*.svc")]).is_some());
        for local in ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"] {
            assert_eq!(through(local, None, &[proxy]), None, "{local}");
        }
    }

    #[test]
    fn logins_are_taken_from_the_url() {
        let Ok(Some(Proxy::Http { authorization, .. })) = asked(CLUSTER, Some("http://me:a%40b@p:1"), &[]) else {
            panic!("no proxy")
        };
        assert_eq!(authorization.expect("a header"), "Basic bWU6YUBi");
        let Ok(Some(Proxy::Socks { uri, login })) = asked(CLUSTER, Some("socks5h://me:secret@p:1"), &[]) else {
            panic!("no proxy")
        };
        assert_eq!((uri.port_u16(), login), (Some(1), Some(("me".into(), "secret".into()))));
        assert_eq!(through(CLUSTER, Some("socks5://p"), &[]), Some("socks5://p:1080/".into()));
        let shown = asked(CLUSTER, Some("socks5://me:secret@p"), &[]).map(|proxy| format!("{proxy:?}"));
        assert!(shown.is_ok_and(|shown| !shown.contains("secret")));
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_names_where_it_was_said() {
        for (url, why) in [("https://p", "https:// is not supported"), ("ftp://p", "ftp://"), ("http://a b", "no URL")]
        {
            let error = asked(CLUSTER, None, &[("HTTPS_PROXY", url)]).expect_err(url).to_string();
            assert!(error.contains("HTTPS_PROXY") && error.contains(why), "{error}");
            let error = asked(CLUSTER, Some(url), &[]).expect_err(url).to_string();
            assert!(error.contains("proxy-url of the kubeconfig"), "{error}");
        }
        // A password may be in it.
        let error = asked(CLUSTER, Some("https://me:secret@p"), &[]).expect_err("refused").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
