//! What a pod's guest is told: by the environment that its server put into the pod, or on the command line of a template
//! that has no server. Pure.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sandbar_api::{Layer, Profile, Requirement, profile};
use sandbar_guest::protocol::{Legacy, Sandboxd, ServeRequest};

const KEYS: &str = "SANDBAR_SERVER_KEYS";
const LISTEN: &str = "SANDBAR_GUEST_LISTEN";
const OPEN_FILES: &str = "SANDBAR_OPEN_FILES";
const LAYERS: &str = "SANDBAR_LAYERS";
const ANYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const PORT: u16 = 7229;

/// Of the runtimes, as their contract has them.
const GRPC_PORT: u32 = 9090;
const REST_PORT: u32 = 8080;
const LEGACY_PORT: u32 = 8888;
const ROOT: &str = "/workspace";
/// Read by the older runtime, too.
const BASE_DIRECTORY: &str = "SANDBOX_BASE_DIR";
const EXECUTE_SECONDS: &str = "SANDBOX_EXEC_TIMEOUT_SECONDS";
const DEFAULT_SECONDS: f64 = 300.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub(super) server: Option<Server>,
    pub(super) layers: BTreeMap<Layer, Requirement>,
    pub(super) open_files: Option<u32>,
    pub(super) runtimes: Option<(ServeRequest, IpAddr)>,
    /// Of workloads.
    pub(super) env: BTreeMap<String, String>,
    pub(super) home: String,
    pub(super) user: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) listen: SocketAddr,
    pub(super) keys: Vec<Vec<u8>>,
}

/// Of the command line.
#[derive(Default)]
struct Options {
    runtimes: Option<String>,
    listen: Option<String>,
    root: Option<String>,
    token_file: Option<String>,
}

impl Settings {
    /// Errors are sentences.
    pub(super) fn read(
        arguments: impl Iterator<Item = OsString>,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, String> {
        let options = options(arguments)?;
        // What is no text cannot be meant for us, nor sent to a program by a request.
        let mut env: BTreeMap<String, String> =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
        let server = server(&env)?;
        let layers = match (env.get(LAYERS), &server) {
            (Some(text), _) => {
                serde_json::from_str(text).map_err(|error| format!("{LAYERS} is not understood: {error}"))?
            }
            (None, Some(_)) => Profile::named(profile::DEFAULT).map(|profile| profile.layers).unwrap_or_default(),
            (None, None) => {
                let optional = [Layer::NoNewPrivs, Layer::Capabilities, Layer::Seccomp, Layer::Landlock];
                optional.map(|layer| (layer, Requirement::Optional)).into()
            }
        };
        let open_files = env.get(OPEN_FILES).map(|text| match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(format!("{OPEN_FILES} is `{text}`, not a number of files")),
        });
        let open_files = open_files.transpose()?;
        let runtimes = runtimes(&options, &env)?;
        if server.is_none() && runtimes.is_none() {
            return Err(format!(
                "there is nobody to serve: set {KEYS} to the server's public keys, or ask for --runtimes"
            ));
        }
        let (home, user) = match &server {
            Some(_) => ("/home/agent".to_owned(), "agent".to_owned()),
            None => {
                let own = |name: &str, otherwise: &str| env.get(name).cloned().unwrap_or_else(|| otherwise.to_owned());
                (own("HOME", "/"), own("USER", "agent"))
            }
        };
        env.retain(|name, _| is_for_workloads(name));
        let runtimes = runtimes
            .map(|(request, address)| (ServeRequest { env: env.clone().into_iter().collect(), ..request }, address));
        Ok(Self { server, layers, open_files, runtimes, env, home, user })
    }
}

/// What the image and the pod say to programs; not what was said to us, nor where the cluster is, nor who we are.
fn is_for_workloads(name: &str) -> bool {
    let own = ["HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "_"];
    !name.starts_with("SANDBAR_") && !name.starts_with("KUBERNETES_") && !name.is_empty() && !own.contains(&name)
}

fn options(mut arguments: impl Iterator<Item = OsString>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let name = argument.to_string_lossy().into_owned();
        let place = match name.as_str() {
            "--runtimes" => &mut options.runtimes,
            "--listen" => &mut options.listen,
            "--root" => &mut options.root,
            "--token-file" => &mut options.token_file,
            _ => return Err(format!("`{name}` is not understood: --runtimes, --listen, --root and --token-file are")),
        };
        let value = arguments.next().and_then(|value| value.into_string().ok());
        *place = Some(value.ok_or_else(|| format!("{name} needs a value"))?);
    }
    Ok(options)
}

fn server(env: &BTreeMap<String, String>) -> Result<Option<Server>, String> {
    let Some(text) = env.get(KEYS) else { return Ok(None) };
    let keys = text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(|key| {
        let der = BASE64_STANDARD.decode(key).map_err(|error| format!("{KEYS} is not base64: {error}"))?;
        // A SEQUENCE, as every SubjectPublicKeyInfo is.
        if der.first() == Some(&0x30) { Ok(der) } else { Err(format!("{KEYS} has something that is no public key")) }
    });
    let keys = keys.collect::<Result<Vec<_>, String>>()?;
    if keys.is_empty() {
        return Err(format!("{KEYS} has no key"));
    }
    let listen = match env.get(LISTEN) {
        None => SocketAddr::new(ANYWHERE, PORT),
        Some(text) => text.parse().map_err(|_| format!("{LISTEN} is `{text}`, not an address with a port"))?,
    };
    Ok(Some(Server { listen, keys }))
}

fn runtimes(options: &Options, env: &BTreeMap<String, String>) -> Result<Option<(ServeRequest, IpAddr)>, String> {
    let Some(asked) = &options.runtimes else {
        let alone = [&options.listen, &options.root, &options.token_file].into_iter().any(Option::is_some);
        return if alone { Err("--listen, --root and --token-file are of --runtimes".into()) } else { Ok(None) };
    };
    let root = options.root.clone().or_else(|| env.get(BASE_DIRECTORY).cloned()).unwrap_or_else(|| ROOT.into());
    let token = match &options.token_file {
        None => String::new(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| format!("failed to read {path}: {error}"))?;
            let token = text.trim().to_owned();
            if token.is_empty() {
                return Err(format!("{path} has no token"));
            }
            token
        }
    };
    let mut request = ServeRequest::default();
    for name in asked.split(',') {
        match name.trim() {
            "sandboxd" => {
                let (root, token) = (root.clone(), token.clone());
                request.sandboxd = Some(Sandboxd { grpc_port: GRPC_PORT, rest_port: REST_PORT, root, token });
            }
            "legacy" if !token.is_empty() => {
                return Err(
                    "the runtime `legacy` knows no token: serve `sandboxd` alone, or without --token-file".into()
                );
            }
            "legacy" => {
                let timeout_ms = execute_milliseconds(env.get(EXECUTE_SECONDS).map_or("", String::as_str));
                request.legacy = Some(Legacy { port: LEGACY_PORT, root: root.clone(), timeout_ms });
            }
            other => return Err(format!("there is no runtime `{other}`: sandboxd and legacy are")),
        }
    }
    let address = match &options.listen {
        None => ANYWHERE,
        Some(text) => text.parse().map_err(|_| format!("--listen is `{text}`, not an address"))?,
    };
    Ok(Some((request, address)))
}

/// What makes no sense is the default, as in the runtime that this stands for.
fn execute_milliseconds(text: &str) -> u64 {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    std::time::Duration::try_from_secs_f64(seconds.unwrap_or(DEFAULT_SECONDS))
        .map_or(u64::MAX, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let arguments = arguments.iter().map(OsString::from);
        Settings::read(arguments, variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn a_server_is_known_by_its_keys() -> Result<(), String> {
        let settings =
            read(&[], &[(KEYS, "MAMCAQE=, MAA="), ("PATH", "/opt/bin"), ("KUBERNETES_PORT", "x"), ("HOME", "/")])?;
        let server = Server { listen: SocketAddr::new(ANYWHERE, PORT), keys: vec![vec![48, 3, 2, 1, 1], vec![48, 0]] };
        assert_eq!(settings.server, Some(server));
        assert_eq!(settings.layers.get(&Layer::Landlock), Some(&Requirement::Required));
        assert_eq!(settings.env, BTreeMap::from([("PATH".to_owned(), "/opt/bin".to_owned())]));
        assert_eq!((settings.home.as_str(), settings.runtimes), ("/home/agent", None));
        for wrong in ["", " , ", "@", "AAAA"] {
            assert!(read(&[], &[(KEYS, wrong)]).is_err_and(|error| error.contains(KEYS)), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn what_a_pod_says_is_understood_or_refused() -> Result<(), String> {
        let key = (KEYS, "MAA=");
        let layers = (LAYERS, r#"{"landlock":"optional","seccomp":"required"}"#);
        let settings = read(&[], &[key, layers, (OPEN_FILES, "64"), (LISTEN, "[::]:1")])?;
        assert_eq!(settings.open_files, Some(64));
        assert_eq!(settings.layers.len(), 2);
        assert_eq!(settings.server.map(|server| server.listen.port()), Some(1));
        for wrong in
            [(LAYERS, "{"), (LAYERS, r#"{"landlocks":"off"}"#), (OPEN_FILES, "0"), (OPEN_FILES, "x"), (LISTEN, "x")]
        {
            assert!(read(&[], &[key, wrong]).is_err_and(|error| error.contains(wrong.0)), "{wrong:?}");
        }
        Ok(())
    }

    #[test]
    fn runtimes_need_no_server() -> Result<(), String> {
        let settings = read(
            &["--runtimes", "sandboxd,legacy"],
            &[("A", "1"), (BASE_DIRECTORY, "/app"), (EXECUTE_SECONDS, "1.5")],
        )?;
        let (request, address) = settings.runtimes.ok_or("no runtimes")?;
        assert_eq!(address, ANYWHERE);
        assert_eq!(request.env.get("A").map(String::as_str), Some("1"));
        let sandboxd = Sandboxd { grpc_port: 9090, rest_port: 8080, root: "/app".into(), token: String::new() };
        assert_eq!(request.sandboxd, Some(sandboxd));
        assert_eq!(request.legacy, Some(Legacy { port: 8888, root: "/app".into(), timeout_ms: 1500 }));
        assert_eq!(settings.layers.get(&Layer::Landlock), Some(&Requirement::Optional));
        for (wrong, said) in [
            (&[][..], "nobody to serve"),
            (&["--runtimes"], "needs a value"),
            (&["--runtimes", "other"], "`other`"),
            (&["--runtimes", "sandboxd", "--listen", "here"], "`here`"),
            (&["--runtimes", "sandboxd", "--token-file", "/nowhere"], "/nowhere"),
            (&["--listen", "0.0.0.0"], "--runtimes"),
            (&["serve"], "`serve`"),
        ] {
            assert!(read(wrong, &[]).is_err_and(|error| error.contains(said)), "{wrong:?}");
        }
        for nonsense in ["", "x", "0", "-1", "inf", "NaN"] {
            assert_eq!(execute_milliseconds(nonsense), 300_000, "{nonsense}");
        }
        Ok(())
    }
}
