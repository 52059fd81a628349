//! Links as a workload would lay them, to lead a caller out of the root: none does, also not while it is being swapped.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::client::serve;
use crate::support::{Guest, Outcome};

pub(crate) async fn lead_nobody_out(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::create_dir(served.guest.path("outside"))?;
    fs::write(served.guest.path("outside/secret"), "secret")?;
    let root = &served.root;
    fs::create_dir(root.join("d"))?;
    fs::write(root.join("d/f"), "inside")?;
    let real = root.canonicalize()?;
    for (link, target) in [
        ("up", "../outside"),
        ("far", "/etc"),
        ("file", "../outside/secret"),
        ("d/deep", "../../outside/secret"),
        ("chain", "up"),
        ("new", "../outside/new"),
        ("nowhere", "/no/such/place"),
        ("round", "round"),
        ("back", "../root/d"),
        ("rel", "d"),
        ("d/self", "./../d/f"),
        ("twice", "rel/self"),
    ] {
        symlink(target, root.join(link))?;
    }
    symlink(real.join("d"), root.join("abs"))?;
    for path in ["up", "up/secret", "file", "d/deep", "chain/secret", "far/passwd", "nowhere", "new", "up/new/deeper"] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let answer = served.rest(&format!("{method} /v1/files/{path}"), &[], b"").await?;
            assert_eq!(answer.status, 403, "{method} {path}: {answer:?}");
        }
        let encoded = path.replace('/', "%2F");
        for route in ["download", "list", "exists"] {
            let answer = served.legacy(&format!("GET /{route}/{encoded}"), &[], b"").await?;
            assert_eq!(answer.status, 403, "{route} {path}");
            assert_eq!(answer.json()["message"], "Access denied");
        }
    }
    assert_eq!(fs::read_dir(served.guest.path("outside"))?.count(), 1, "nothing was made there");
    assert_eq!(served.rest("GET /v1/files/round", &[], b"").await?.status, 400);
    // What leads back in, or never left, is as good as any other.
    for path in ["back/f", "rel/f", "abs/f", "d/self", "twice"] {
        let answer = served.rest(&format!("GET /v1/files/{path}"), &[], b"").await?;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"inside"[..]), "{path}");
    }
    // Written through a link, the file at its end changes and the link stays.
    assert_eq!(served.rest("PUT /v1/files/twice", &[], b"changed").await?.status, 204);
    assert_eq!(fs::read_to_string(root.join("d/f"))?, "changed");
    assert!(fs::symlink_metadata(root.join("twice"))?.is_symlink());
    Ok(())
}

/// Swaps a directory with a link that leads out, as fast as it can.
pub(crate) async fn lead_nobody_out_while_they_change(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::create_dir(served.guest.path("outside"))?;
    fs::write(served.guest.path("outside/f"), "secret")?;
    fs::create_dir(served.root.join("place"))?;
    fs::write(served.root.join("place/f"), "inside")?;
    symlink("../outside", served.root.join("other"))?;
    let (place, other) = (served.root.join("place"), served.root.join("other"));
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                if renameat_with(CWD, &place, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                    swaps += 1;
                }
            }
            swaps
        }
    });
    let mut seen = (0, 0);
    for _ in 0..400 {
        let answer = served.rest("GET /v1/files/place/f", &[], b"").await?;
        match answer.status {
            200 => {
                assert_eq!(answer.body, b"inside", "it was led out");
                seen.0 += 1;
            }
            403 => seen.1 += 1,
            // Between two looks.
            404 => {}
            status => return Err(format!("{status}: {answer:?}").into()),
        }
        let put = served.rest("PUT /v1/files/place/new", &[], b"x").await?;
        assert!(matches!(put.status, 204 | 403 | 404 | 400), "{put:?}");
        let cleared = served.rest("DELETE /v1/files/place/new", &[], b"").await?;
        assert!(matches!(cleared.status, 204 | 403 | 404 | 400), "{cleared:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().map_err(|_| "the swapper panicked")?;
    assert!(swaps > 400 && seen.0 > 0 && seen.1 > 0, "{swaps} swaps, {seen:?}: nothing was tried");
    assert_eq!(fs::read_dir(served.guest.path("outside"))?.count(), 1, "something was written outside");
    assert_eq!(fs::read_to_string(served.guest.path("outside/f"))?, "secret");
    Ok(())
}
