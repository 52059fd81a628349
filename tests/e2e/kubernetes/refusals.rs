//! What cannot be had on a cluster, said with its cause and what to do, before or after the cluster was asked.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    kubernetes::place::{Place, until},
    support::Outcome,
};

/// As long as a name may be.
const LONG: &str = "a-name-that-is-as-long-as-the-name-of-a-template-may-be-63-char";

#[test]
fn what_a_pod_cannot_be_is_refused_at_once() -> Outcome {
    let templates = [
        ("root", "user = \"root\"\n"),
        ("processes", "[limits]\nprocesses = 10\n"),
        ("directory", "root = { kind = \"image\", path = \"/usr\" }\n"),
        ("words", "root = { kind = \"oci\", image = \"no image\" }\n"),
        ("measured", "[limits]\ndisk = \"1GiB\"\n[kubernetes]\nstorage = \"ephemeral\"\n"),
    ];
    let Some(place) = Place::open("what_a_pod_cannot_be_is_refused_at_once", &templates)? else { return Ok(()) };
    let create = |template: &'static str| ["create", "--name", "a", "--template", template];
    let begun = Instant::now();
    place.refused(&create("root"), 1, "bad_template", &["root", "agent"])?;
    place.refused(&create("processes"), 7, "not_enforceable", &["podPidsLimit"])?;
    place.refused(&create("directory"), 2, "bad_path", &["oci"])?;
    place.refused(&create("words"), 1, "bad_template", &["no image"])?;
    place.refused(&create("measured"), 7, "not_enforceable", &["persistent"])?;
    let skills = tempfile::tempdir()?;
    let bound = format!("{}:rw", skills.path().display());
    place.refused(&["create", "--name", "a", "--workspace", &bound], 2, "bad_path", &["sandbar cp"])?;
    std::fs::write(place.server.home.path().join("templates/skilled.toml"), format!("skills = {:?}\n", skills.path()))?;
    place.refused(&create("skilled"), 2, "bad_path", &["skills", "image"])?;
    place.refused(&["create", "--name", &"x".repeat(300)], 2, "bad_name", &[])?;
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    place.expect_nothing_left()
}

#[test]
fn what_the_cluster_has_no_room_or_image_for_is_said() -> Outcome {
    let templates = [
        ("absent", "root = { kind = \"oci\", image = \"sandbar.test/none-such:1\" }\n"),
        ("huge", "[limits]\nmemory = \"900GiB\"\n"),
        (LONG, "[kubernetes]\nstorage = \"ephemeral\"\n"),
    ];
    let Some(place) = Place::open("what_the_cluster_has_no_room_or_image_for_is_said", &templates)? else {
        return Ok(());
    };
    // A name of ours is never too long for the cluster's.
    place.sandbar(&["create", "--name", &"x".repeat(63), "--template", LONG])?;
    place.sandbar(&["rm", &"x".repeat(63)])?;
    std::thread::scope(|scope| -> Outcome {
        let huge =
            scope.spawn(|| place.refused(&["create", "--name", "b", "--template", "huge"], 1, "too_many", &["memory"]));
        let words = ["sandbar.test/none-such:1"];
        place.refused(&["create", "--name", "a", "--template", "absent"], 1, "bad_template", &words)?;
        huge.join().map_err(|_| "it panicked")?
    })?;
    place.expect_nothing_left()?;

    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}},
    });
    place.apply(&quota)?;
    // It counts only once the controller of quotas has seen it.
    until("the quota holds", || {
        let path = "jsonpath={.status.hard.pods}";
        Ok(place.kubectl(&["get", "resourcequota", "few", "-o", path])? == "1")
    })?;
    place.sandbar(&["create", "--name", "one"])?;
    place.refused(&["create", "--name", "two"], 1, "too_many", &["exceeded quota", "ResourceQuota"])?;
    assert_eq!(place.inside("one", "echo alive")?, "alive\n");
    place.sandbar(&["rm", "one"])?;
    place.expect_nothing_left()
}
