//! `[network]` of `gateway.toml`: what an operator sets for all sandboxes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sandbar_gateway::Settings;
use sandbar_policy::Host;

use super::document::{Field, Mistake, Read, Section};

const MOST_CONNECTIONS: u64 = 65_536;
/// A certificate has about 2 KiB.
const MOST_ROOTS: u64 = 4 << 20;

/// The settings, and the file of roots that they depend on.
pub(super) fn read(whole: &Section<'_>, home: &Path, mistakes: &mut Vec<Mistake>) -> (Settings, Option<PathBuf>) {
    let (mut settings, mut roots) = (Settings::default(), None);
    let read = whole.field("network").map(|field| section(&field, home, &mut settings, &mut roots, mistakes));
    mistakes.extend(read.transpose().err());
    (settings, roots)
}

fn section(
    field: &Field<'_>,
    home: &Path,
    settings: &mut Settings,
    roots: &mut Option<PathBuf>,
    mistakes: &mut Vec<Mistake>,
) -> Read<()> {
    let section = field.section()?;
    section.only(&["private", "dns", "roots", "connections", "hosts"])?;
    settings.private = each(section.field("private"), range, mistakes);
    settings.dns = each(section.field("dns"), resolver, mistakes);
    let connections = section.field("connections").map(|field| field.count(MOST_CONNECTIONS)).transpose();
    match connections {
        Ok(Some(count)) => settings.connections = usize::try_from(count).unwrap_or(usize::MAX),
        Ok(None) => {}
        Err(mistake) => mistakes.push(mistake),
    }
    if let Some(hosts) = section.field("hosts") {
        for field in hosts.section()?.fields() {
            mistakes.extend(host(&field, &mut settings.hosts).err());
        }
    }
    if let Some(field) = section.field("roots") {
        let path = home.join(field.text()?);
        settings.extra_roots = certificates(&path).map_err(|cause| {
            field.bad(format!("{} cannot be used: {cause}", path.display().to_string().escape_debug()))
        })?;
        *roots = Some(path);
    }
    Ok(())
}

fn each<T>(field: Option<Field<'_>>, read: fn(&Field<'_>) -> Read<T>, mistakes: &mut Vec<Mistake>) -> Vec<T> {
    let items = field.map(|field| field.list()).transpose().unwrap_or_else(|mistake| {
        mistakes.push(mistake);
        None
    });
    let mut values = Vec::new();
    for item in items.into_iter().flatten() {
        match read(&item) {
            Ok(value) => values.push(value),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    values
}

fn range(item: &Field<'_>) -> Read<IpNet> {
    let text = item.text()?;
    let bad = |cause: String| item.bad(format!("`{}` is not a private range: {cause}", text.escape_debug()));
    let net: IpNet = match (text.parse(), text.parse::<IpAddr>()) {
        (Ok(net), _) => net,
        (_, Ok(address)) => return Err(bad(format!("write `{}`", IpNet::from(address)))),
        _ => return Err(bad("write it like `10.1.0.0/16`".into())),
    };
    if net != net.trunc() {
        return Err(bad(format!("it begins at `{}`", net.trunc())));
    }
    if let IpNet::V6(net) = net
        && [Ipv6Net::new_assert([0, 0, 0, 0, 0, 0xffff, 0, 0].into(), 96)].iter().any(|mapped| mapped.contains(&net))
    {
        return Err(bad("write IPv4 ranges as such".into()));
    }
    let link_local = match net {
        IpNet::V4(net) => overlap(&net.into(), &Ipv4Net::new_assert([169, 254, 0, 0].into(), 16).into()),
        IpNet::V6(net) => overlap(&net.into(), &Ipv6Net::new_assert([0xfe80, 0, 0, 0, 0, 0, 0, 0].into(), 10).into()),
    };
    if link_local {
        let cause = "it has link-local addresses in it, where clouds keep their credentials and nothing may lead to";
        return Err(bad(format!("{cause}: write the ranges you need")));
    }
    Ok(net)
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

fn resolver(item: &Field<'_>) -> Read<SocketAddr> {
    let text = item.text()?;
    let fix = match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) if address.port() != 0 => return Ok(address),
        (_, Ok(address)) => format!("write `{}`", SocketAddr::new(address, 53)),
        _ => "write an address and a port, like `192.0.2.53:53`".into(),
    };
    Err(item.bad(format!("`{}` is not a resolver: {fix}", text.escape_debug())))
}

fn host(field: &Field<'_>, hosts: &mut BTreeMap<String, Vec<IpAddr>>) -> Read<()> {
    let name = match Host::parse(field.name) {
        Ok(Host::Name(name)) => name,
        Ok(Host::Ip(_)) => return Err(field.bad(format!("`{}` is an address: only names are looked up", field.name))),
        Err(bad) => return Err(field.bad(bad.to_string())),
    };
    let address = |item: Field<'_>| {
        let text = item.text()?;
        let cause = || item.bad(format!("`{}` is not an address: write it like `10.1.2.3`", text.escape_debug()));
        text.parse().map_err(|_| cause())
    };
    let addresses = field.list()?.into_iter().map(address).collect::<Read<Vec<_>>>()?;
    if addresses.is_empty() {
        return Err(field.bad(format!("`{name}` has no address: write one, or leave the name out")));
    }
    if hosts.insert(name, addresses).is_some() {
        return Err(field.bad(format!("`{}` is there twice: names are the same in upper and lower case", field.name)));
    }
    Ok(())
}

fn certificates(path: &Path) -> Result<Vec<u8>, String> {
    let text = super::file::read(path, MOST_ROOTS)?.ok_or("there is no such file")?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err("there is no PEM certificate in it".into());
    }
    Ok(text.into_bytes())
}
