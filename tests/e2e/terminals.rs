//! A person who looks at terminals without attaching: real programs in a sandbox's terminal, seen through the command line.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Outcome, Server, done, text};

/// A terminal in the sandbox `a`, started without anybody attached.
async fn start(server: &Server, argv: &[&str]) -> Outcome<String> {
    let request = sandbar_api::StartProcess {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: [("TERM".to_owned(), "xterm-256color".to_owned())].into(),
        terminal: Some(sandbar_api::TerminalSize { cols: 60, rows: 12 }),
        ..sandbar_api::StartProcess::default()
    };
    Ok(server.client()?.start_process("a", &request).await?.id.to_string())
}

/// Looks until the screen of the newest terminal shows it.
fn seen(server: &Server, what: &str) -> Outcome<String> {
    seen_within(Duration::from_secs(60), server, what)
}

fn seen_within(patience: Duration, server: &Server, what: &str) -> Outcome<String> {
    let deadline = Instant::now() + patience;
    loop {
        let screen = done(&mut server.command(&["screen", "a"]))?;
        if screen.contains(what) {
            return Ok(screen);
        }
        if Instant::now() > deadline {
            return Err(format!("`{what}` is not on the screen:\n{screen}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[tokio::test]
async fn full_screen_programs_are_seen_without_attaching() -> Outcome {
    let mut server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let nothing = server.command(&["screen", "a"]).output()?;
    assert_eq!(nothing.status.code(), Some(4), "{}", text(&nothing.stderr));
    done(&mut server.command(&["exec", "a", "--", "sh", "-c", "seq -f 'line %g of many' 300 > /workspace/file"]))?;
    let mut shown = false;
    for (program, argv, marker) in [
        ("less", &["less", "/workspace/file"][..], "line 1 of many"),
        ("vim", &["vim", "-u", "NONE", "/workspace/file"], "line 3 of many"),
        ("top", &["top"], "load average"),
    ] {
        if !has(program) {
            let why = format!("{program} is not installed");
            sandbar_test_harness::partly_not_run("full_screen_programs_are_seen_without_attaching", &why);
            continue;
        }
        shown = true;
        let process = start(&server, argv).await?;
        let screen = seen(&server, marker)?;
        assert!(screen.lines().count() <= 12, "{program}:\n{screen}");
        assert!(!screen.contains('\u{1b}'), "{program}: {screen:?}");
        let view: Value = serde_json::from_str(&done(&mut server.command(&["screen", "--json", "a", &process]))?)?;
        assert_eq!((&view["size"]["cols"], &view["ended"]), (&60.into(), &false.into()), "{program}");
        if program != "top" {
            assert_eq!(view["alternate_screen"], true, "{program}");
        }
        if program == "less" {
            server.client()?.resize("a", &process, sandbar_api::TerminalSize { cols: 60, rows: 6 }).await?;
            let mut last: Outcome<String> = Err("nothing was typed".into());
            for _ in 0..6 {
                // It may lose a key that comes together with the news of its size.
                server.client()?.write_stdin("a", &process, None, "G".into(), false).await?;
                last = seen_within(Duration::from_secs(10), &server, "(END)");
                if last.is_ok() {
                    break;
                }
            }
            let last = last?;
            assert!(last.contains("line 300 of many"), "{last}");
            assert!(last.lines().count() <= 6 && !last.contains("line 1 of many"), "{last}");
            server.kill()?;
            server.restart()?;
            assert_eq!(done(&mut server.command(&["screen", "a"]))?, last, "after the death of the server");
        }
        done(&mut server.command(&["kill", "-s", "KILL", "a", &process]))?;
    }
    assert!(shown, "none of the programs is installed");
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test]
async fn what_was_shown_is_searched_replayed_and_exported() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    // Without echo, or the answers to its queries would be part of what it shows.
    let script = r#"
        stty -echo
        printf '\033]52;c;ZXZpbA==\007\033]0;a title\007\033]8;;http://x/\033\\a link\033]8;;\033\\\r\n'
        printf '\033[32mgreen\033[m\033[6n\033[c\r\n'
        printf 'one 10%%\rone 99%%\r\nNeedle in it\r\n'
        until [ -e /workspace/go ]; do sleep 0.05; done
        printf 'the end'
        exit 7"#;
    let process = start(&server, &["sh", "-c", script]).await?;
    seen(&server, "Needle in it")?;
    tokio::time::sleep(Duration::from_millis(600)).await;
    done(&mut server.command(&["exec", "a", "--", "touch", "/workspace/go"]))?;
    seen(&server, "the end")?;
    let client = server.client()?;
    let deadline = Instant::now() + Duration::from_secs(300);
    while client.process("a", &process).await?.exit.is_none() {
        assert!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    assert_eq!(done(&mut server.command(&["transcript", "a", "--grep", "needle", "-i"]))?, "Needle in it\n");
    let all = done(&mut server.command(&["transcript", "a"]))?;
    assert_eq!(all, "a link\ngreen\none 99%\nNeedle in it\nthe end\n");
    let line = done(&mut server.command(&["transcript", "--json", "a", &process, "--grep", "Needle"]))?;
    let line: Value = serde_json::from_str(&line)?;
    assert!(line["offset"].as_u64() > Some(0) && line["at"].is_string(), "{line}");

    // The control: what the program printed is stored as it was.
    let raw = server.command(&["logs", "a", &process]).output()?.stdout;
    for sequence in ["\u{1b}]52;c;ZXZpbA==\u{7}", "\u{1b}]0;a title", "\u{1b}]8;;http://x/", "\u{1b}[6n", "\u{1b}[c"] {
        assert!(text(&raw).contains(sequence), "{sequence:?} was never printed");
    }
    let begun = Instant::now();
    let replayed = done(&mut server.command(&["replay", "a", "--speed", "2"]))?;
    assert!(begun.elapsed() >= Duration::from_millis(200), "it did not take its time");
    for bad in ["52;c", "title", "http://x/", "\u{1b}]", "\u{1b}[6n", "\u{1b}[c"] {
        assert!(!replayed.contains(bad), "{bad:?} came out: {replayed:?}");
    }
    for good in ["a link", "\u{1b}[32mgreen\u{1b}[", "Needle in it\r", "the end"] {
        assert!(replayed.contains(good), "{good:?} is missing: {replayed:?}");
    }

    let place = tempfile::tempdir()?;
    let file = place.path().join("a.cast");
    done(&mut server.command(&["replay", "a", "--export", file.to_str().ok_or("path")?]))?;
    let cast = std::fs::read_to_string(&file)?;
    let lines: Vec<Value> = cast.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!((&lines[0]["version"], &lines[0]["term"]), (&3.into(), &serde_json::json!({"cols": 60, "rows": 12})));
    let mut total = 0.0;
    for event in &lines[1..] {
        let [interval, code, data] = event.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(format!("{event} is no event").into());
        };
        total += interval.as_f64().filter(|seconds| *seconds >= 0.0).ok_or("no interval")?;
        assert!(matches!(code.as_str(), Some("o" | "r" | "x")) && data.is_string(), "{event}");
    }
    assert!((0.5..90.0).contains(&total), "it took {total} s");
    assert_eq!(lines.last().map(|event| (&event[1], &event[2])), Some((&"x".into(), &"7".into())));
    // The command itself is in the header.
    assert!(cast.lines().skip(1).all(|event| !event.contains("ZXZpbA")), "{cast}");
    assert_eq!(std::fs::read_dir(place.path())?.count(), 1);

    let plain = done(&mut server.command(&["exec", "-d", "a", "--", "true"]))?;
    let refused = server.command(&["screen", "a", plain.trim()]).output()?;
    assert_eq!(refused.status.code(), Some(5), "{}", text(&refused.stderr));
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test]
async fn logs_of_a_terminal_do_not_act_on_ours() -> Outcome {
    if !has("script") {
        sandbar_test_harness::missing("logs_of_a_terminal_do_not_act_on_ours", "script");
        return Ok(());
    }
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let process = start(&server, &["sh", "-c", r"printf '\033]52;c;ZXZpbA==\007shown'"]).await?;
    seen(&server, "shown")?;
    let sandbar = crate::support::program();
    let line = format!("'{}' logs a {process}", sandbar.display());
    let ours = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SANDBAR_HOME", server.home.path())
        .stdin(Stdio::null())
        .output()?;
    let ours = text(&ours.stdout);
    assert!(ours.contains("shown") && !ours.contains("ZXZpbA"), "{ours:?}");
    let piped = text(&server.command(&["logs", "a", &process]).output()?.stdout);
    assert!(piped.contains("\u{1b}]52;c;ZXZpbA==\u{7}shown"), "into a pipe it goes as it is: {piped:?}");
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}
