//! Package managers of languages against registries that want a token: pip and npm.

use std::{fs, path::Path};

use sha2::{Digest as _, Sha512};

use crate::{
    gate::house::{House, has, host},
    gate::secrets::{expect_nowhere, expect_nowhere_inside},
    gate::site::{Reply, Seen, Site, reply},
    support::Outcome,
};

const TOKEN: &str = "a-package-token-that-stays-outside-7";

/// Refuses who has not the header that the token makes.
pub(crate) fn guarded(seen: &Seen, expected: &str, answer: impl FnOnce() -> Reply) -> Reply {
    if seen.header("authorization") == expected { answer() } else { reply(401, "who are you?\n") }
}

/// A zip archive of files given by name and text.
pub(crate) fn zip(place: &Path, files: &[(&str, &str)]) -> Outcome<Vec<u8>> {
    let script = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as archive:
    for name, text in zip(sys.argv[2::2], sys.argv[3::2]): archive.writestr(name, text)";
    let path = place.to_string_lossy();
    let mut arguments = vec!["-c", script, &path];
    arguments.extend(files.iter().flat_map(|(name, text)| [*name, *text]));
    host("python3", &arguments)?;
    Ok(fs::read(place)?)
}

/// A compressed tar archive of a directory that is filled with these files.
pub(crate) fn tarball(place: &Path, directory: &str, files: &[(&str, &str)]) -> Outcome<Vec<u8>> {
    for (name, text) in files {
        let path = place.join(directory).join(name);
        fs::create_dir_all(path.parent().ok_or("no directory")?)?;
        fs::write(path, text)?;
    }
    let archive = place.join("archive.tar.gz");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    host("tar", &["-C", &path(place), "-czf", &path(&archive), directory])?;
    Ok(fs::read(archive)?)
}

#[test]
fn pip_installs_from_an_index_that_wants_a_token() -> Outcome {
    if !has("pip_installs_from_an_index_that_wants_a_token", "pip3") {
        return Ok(());
    }
    let house = House::open()?;
    let wheel = zip(
        &house.directory("pip")?.join("wheel"),
        &[
            ("tiny/__init__.py", "ANSWER = 42\n"),
            ("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"),
            (
                "tiny-1.0.dist-info/WHEEL",
                "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            ),
            ("tiny-1.0.dist-info/RECORD", ""),
        ],
    )?;
    let expected = format!("Basic {}", sandbar_api::bytes::encode(format!("__token__:{TOKEN}").as_bytes()));
    let site = Site::start(&house.roots, "pypi.test", move |seen| {
        guarded(seen, &expected, || match seen.path() {
            "/simple/tiny/" => {
                let mut page =
                    reply(200, "<a href=\"../../files/tiny-1.0-py3-none-any.whl\">tiny-1.0-py3-none-any.whl</a>");
                page.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("text/html"));
                page
            }
            "/files/tiny-1.0-py3-none-any.whl" => reply(200, wheel.clone()),
            _ => reply(404, ""),
        })
    })?;
    house.secret("PYPI_TOKEN", "pypi.test", "basic:__token__", TOKEN)?;
    house.create("box", &[&site.place], &["--secret", "PYPI_TOKEN"])?;
    let script = format!(
        "pip3 --isolated install -q --no-input --disable-pip-version-check --target site \
         --index-url \"https://__token__:$PYPI_TOKEN@{}/simple/\" tiny 2>&1 && \
         PYTHONPATH=site python3 -c 'import tiny; print(tiny.ANSWER)'",
        site.place
    );
    let said = house.well("box", &script)?;
    assert!(said.ends_with("42\n"), "{said}");
    expect_nowhere_inside(&house, "box", "PYPI_TOKEN", TOKEN)?;
    expect_nowhere(&house, TOKEN)
}

#[test]
fn npm_installs_from_a_registry_that_wants_a_token() -> Outcome {
    if !has("npm_installs_from_a_registry_that_wants_a_token", "npm") {
        return Ok(());
    }
    let house = House::open()?;
    let package = tarball(
        &house.directory("npm")?,
        "package",
        &[
            ("package.json", "{\"name\": \"tiny\", \"version\": \"1.0.0\", \"main\": \"index.js\"}"),
            ("index.js", "module.exports = 42;\n"),
        ],
    )?;
    let integrity = format!("sha512-{}", sandbar_api::bytes::encode(&Sha512::digest(&package)));
    let site = Site::start(&house.roots, "npm.test", move |seen| {
        guarded(seen, &format!("Bearer {TOKEN}"), || match seen.path() {
            "/tiny" => {
                let tarball = format!("https://{}/tiny/-/tiny-1.0.0.tgz", authority(seen));
                let dist = serde_json::json!({"tarball": tarball, "integrity": integrity});
                let version = serde_json::json!({"name": "tiny", "version": "1.0.0", "dist": dist});
                let tags = serde_json::json!({"latest": "1.0.0"});
                let document = serde_json::json!({"name": "tiny", "dist-tags": tags, "versions": {"1.0.0": version}});
                reply(200, document.to_string())
            }
            "/tiny/-/tiny-1.0.0.tgz" => reply(200, package.clone()),
            _ => reply(404, "{}"),
        })
    })?;
    house.secret("NPM_TOKEN", "npm.test", "header:Authorization:Bearer {}", TOKEN)?;
    house.create("box", &[&site.place], &["--secret", "NPM_TOKEN"])?;
    let script = format!(
        "set -e
        printf 'registry=https://{0}/\\n//{0}/:_authToken=${{NPM_TOKEN}}\\n' > .npmrc
        npm install --no-audit --no-fund --no-update-notifier tiny >log 2>&1 || {{ cat log; exit 1; }}
        node -p 'require(\"tiny\")'",
        site.place
    );
    assert_eq!(house.well("box", &script)?, "42\n");
    expect_nowhere_inside(&house, "box", "NPM_TOKEN", TOKEN)?;
    expect_nowhere(&house, TOKEN)
}

/// Host and port as the client wrote them.
fn authority(seen: &Seen) -> String {
    seen.uri.authority().map_or_else(|| seen.header("host").to_owned(), ToString::to_string)
}
