//! cargo, go and apt against servers of their own kinds.

use std::{fmt::Write as _, fs, path::Path};

use sha2::{Digest as _, Sha256};

use crate::{
    gate::house::{House, has},
    gate::packages::{guarded, tarball, zip},
    gate::secrets::{expect_nowhere, expect_nowhere_inside},
    gate::site::{Site, reply},
    support::Outcome,
};

const TOKEN: &str = "a-registry-token-that-stays-outside-9";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// What `cargo fetch` takes to run: itself, and the compiler, which it asks about targets.
fn toolchain(into: &Path) -> Outcome {
    let cargo = std::env::var("CARGO").map_err(|_| "cargo did not start this test")?;
    let root = Path::new(&cargo).parent().and_then(Path::parent).ok_or("cargo has no directory")?;
    for directory in ["bin", "lib"] {
        fs::create_dir_all(into.join(directory))?;
    }
    for name in ["bin/cargo", "bin/rustc"] {
        fs::copy(root.join(name), into.join(name))?;
    }
    for entry in fs::read_dir(root.join("lib"))?.flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), into.join("lib").join(entry.file_name()))?;
    }
    Ok(())
}

#[test]
fn cargo_fetches_from_a_registry_that_wants_a_token() -> Outcome {
    let house = House::open()?;
    let workspace = house.directory("cargo")?;
    if let Err(error) = toolchain(&workspace) {
        sandbar_test_harness::not_run(
            "cargo_fetches_from_a_registry_that_wants_a_token",
            &format!("no toolchain to copy: {error}"),
        );
        return Ok(());
    }
    let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    let files = [("Cargo.toml", manifest), ("src/lib.rs", "pub const ANSWER: u32 = 42;\n")];
    let package = tarball(&house.directory("crate")?, "tiny-0.1.0", &files)?;
    let line = serde_json::json!({
        "name": "tiny", "vers": "0.1.0", "deps": [], "cksum": hex(&Sha256::digest(&package)), "features": {},
        "yanked": false,
    });
    let site = Site::start(&house.roots, "cargo.test", move |seen| {
        guarded(seen, TOKEN, || match seen.path() {
            "/index/config.json" => {
                let host = seen.uri.authority().map_or_else(|| seen.header("host").to_owned(), ToString::to_string);
                let config = serde_json::json!({"dl": format!("https://{host}/dl"), "auth-required": true});
                reply(200, config.to_string())
            }
            "/index/ti/ny/tiny" => reply(200, line.to_string()),
            "/dl/tiny/0.1.0/download" => reply(200, package.clone()),
            _ => reply(404, ""),
        })
    })?;
    fs::create_dir_all(workspace.join(".cargo"))?;
    fs::write(
        workspace.join(".cargo/config.toml"),
        format!(
            "[registry]\nglobal-credential-providers = [\"cargo:token\"]\n\n[registries.tests]\nindex = \"sparse+https://{}/index/\"\n",
            site.place
        ),
    )?;
    fs::create_dir_all(workspace.join("src"))?;
    fs::write(workspace.join("src/main.rs"), "fn main() {}\n")?;
    let manifest = "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n\
                    [dependencies]\ntiny = { version = \"0.1\", registry = \"tests\" }\n";
    fs::write(workspace.join("Cargo.toml"), manifest)?;
    house.secret("CARGO_REGISTRIES_TESTS_TOKEN", "cargo.test", "header:Authorization", TOKEN)?;
    let bound = format!("{}:rw", workspace.display());
    house.create("box", &[&site.place], &["--secret", "CARGO_REGISTRIES_TESTS_TOKEN", "--workspace", &bound])?;
    let script = "PATH=/workspace/bin:$PATH CARGO_HOME=/tmp/cargo cargo fetch -q && cat /tmp/cargo/registry/src/*/tiny-0.1.0/src/lib.rs";
    assert_eq!(house.well("box", script)?, "pub const ANSWER: u32 = 42;\n");
    house.sandbar(&["exec", "box", "--", "rm", "-r", "bin", "lib"])?;
    expect_nowhere_inside(&house, "box", "CARGO_REGISTRIES_TESTS_TOKEN", TOKEN)?;
    expect_nowhere(&house, TOKEN)
}

#[test]
fn go_downloads_from_a_proxy_that_wants_a_password() -> Outcome {
    if !has("go_downloads_from_a_proxy_that_wants_a_password", "go") {
        return Ok(());
    }
    let house = House::open()?;
    let module = "module tiny.test/tiny\n\ngo 1.19\n";
    let archive = zip(
        &house.directory("go")?.join("zip"),
        &[
            ("tiny.test/tiny@v0.1.0/go.mod", module),
            ("tiny.test/tiny@v0.1.0/tiny.go", "package tiny\n\nconst Answer = 42\n"),
        ],
    )?;
    let expected = format!("Basic {}", sandbar_api::bytes::encode(format!("agent:{TOKEN}").as_bytes()));
    let site = Site::start(&house.roots, "go.test", move |seen| {
        guarded(seen, &expected, || match seen.path() {
            "/tiny.test/tiny/@v/v0.1.0.info" => reply(200, "{\"Version\": \"v0.1.0\"}"),
            "/tiny.test/tiny/@v/v0.1.0.mod" => reply(200, module),
            "/tiny.test/tiny/@v/v0.1.0.zip" => reply(200, archive.clone()),
            _ => reply(404, ""),
        })
    })?;
    house.secret("GO_PASSWORD", "go.test", "basic:agent", TOKEN)?;
    house.create("box", &[&site.place], &["--secret", "GO_PASSWORD"])?;
    let script = format!(
        "set -e
        export PATH=$PATH:/usr/local/go/bin GOPROXY=\"https://agent:$GO_PASSWORD@{}\" GONOSUMDB='*' GOTOOLCHAIN=local
        printf 'module user\\n\\ngo 1.19\\n\\nrequire tiny.test/tiny v0.1.0\\n' > go.mod
        go mod download tiny.test/tiny
        cat $(go env GOMODCACHE)/tiny.test/tiny@v0.1.0/tiny.go | tail -n 1",
        site.place
    );
    assert_eq!(house.well("box", &script)?, "const Answer = 42\n");
    expect_nowhere_inside(&house, "box", "GO_PASSWORD", TOKEN)?;
    expect_nowhere(&house, TOKEN)
}

/// Over plain HTTP, as most mirrors are read, through a tunnel, and terminated.
#[test]
fn apt_reads_repositories() -> Outcome {
    if !has("apt_reads_repositories", "apt-get") {
        return Ok(());
    }
    let house = House::open()?;
    let packages = "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: tests <tests@web.test>\n\
                    Filename: ./tiny.deb\nSize: 1\nSHA256: 0\nDescription: small\n\n";
    let release = format!(
        "Suite: tests\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {} {} Packages\n",
        hex(&Sha256::digest(packages)),
        packages.len()
    );
    let answer = move |seen: &crate::gate::site::Seen| match seen.path().trim_start_matches("/./") {
        "Packages" => reply(200, packages),
        "Release" => reply(200, release.clone()),
        _ => reply(404, ""),
    };
    let (plain, tunnelled, terminated) = (
        Site::plain("apt.test", answer.clone())?,
        Site::start(&house.roots, "apt.test", answer.clone())?,
        Site::start(&house.roots, "other.test", answer)?,
    );
    fs::write(house.server.home.path().join("templates/root.toml"), "user = \"root\"\n")?;
    let rules = [plain.place.as_str(), &tunnelled.place, &format!("{} GET", terminated.place)];
    if !house.if_enforceable("apt_reads_repositories", &["create", "--name", "probe", "--template", "root"])? {
        return Ok(());
    }
    house.create("box", &rules, &["--template", "root"])?;
    for (url, trust) in [
        (format!("http://{}", plain.place), ""),
        (format!("https://{}", tunnelled.place), "-o Acquire::https::CAInfo=/workspace/ca.pem"),
        (format!("https://{}", terminated.place), ""),
    ] {
        let script = format!(
            "set -e
            echo 'deb [trusted=yes] {url}/ ./' > sources.list
            options='-o Dir::Etc::sourcelist=/workspace/sources.list -o Dir::Etc::sourceparts=-'
            apt-get -qq $options {trust} -o APT::Sandbox::User=root update
            apt-cache $options policy tiny | grep -o '{url}'"
        );
        assert_eq!(house.well("box", &script)?.trim(), url, "{url}");
    }
    Ok(())
}
