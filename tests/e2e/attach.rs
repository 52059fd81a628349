//! People attached to terminals: real ones around the command line, a real server that dies, several at once.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbar_terminal::{Screen, screen::Part};

use crate::support::{Outcome, SANDBAR, Server, done, text};

/// Python's pty module plays the people: it opens terminals, sets their sizes, types and reads.
const PEOPLE: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
class Person:
    def __init__(self, *arguments, rows=24, cols=80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
            os.execv(sys.argv[1], [sys.argv[1], *arguments])
        self.seen = b""
    def size(self, rows, cols): fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    def type(self, data): os.write(self.fd, data)
    def read(self, left):
        ready, _, _ = select.select([self.fd], [], [], max(0, left))
        try: return os.read(self.fd, 65536) if ready else None
        except OSError: return b""
    def until(self, word):
        end = time.time() + 30
        while word not in self.seen:
            data = self.read(end - time.time())
            if not data: sys.exit("waited for %r in vain: %r" % (word, self.seen[-3000:]))
            self.seen += data
        before, self.seen = self.seen.split(word, 1)
        return before + word
    def cooked(self):
        flags = termios.tcgetattr(self.fd)[3]
        return bool(flags & termios.ICANON and flags & termios.ECHO)
    def left(self):
        "What it still printed, its exit code; the terminal must be as before."
        end = time.time() + 30
        rest, self.seen = self.seen, b""
        while not rest.endswith(b"comes back]\r\n"):
            data = self.read(end - time.time())
            if not data: break
            rest += data
        cooked = self.cooked() if rest.endswith(b"comes back]\r\n") else True
        while self.read(end - time.time()): pass
        if not cooked: sys.exit("the terminal is still raw")
        return rest, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
def expect(good, what):
    if not good: sys.exit("%r" % (what,))
"#;

fn people(server: &Server, script: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", "python3", "-c", &format!("{PEOPLE}\n{script}"), SANDBAR]);
    command.env("SANDBAR_HOME", server.home.path()).env("TERM", "xterm-256color").env_remove("SANDBAR_DETACH_KEYS");
    command
}

async fn start(server: &Server, script: &str) -> Outcome<String> {
    let request = sandbar_api::StartProcess {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        terminal: Some(sandbar_api::TerminalSize { cols: 80, rows: 24 }),
        stdin: true,
        ..sandbar_api::StartProcess::default()
    };
    Ok(server.client()?.start_process("a", &request).await?.id.to_string())
}

/// It has said so, and from then on echoes nothing.
async fn ready(server: &Server, process: &str) -> Outcome {
    let client = server.client()?;
    crate::support::until("it is ready", async || Ok(client.screen("a", process).await?.lines[0].contains("ready")))
        .await
}

#[test]
fn an_editor_is_left_and_found_again_as_it_was() -> Outcome {
    if Command::new("vim").arg("--version").stdout(Stdio::null()).status().is_err() {
        sandbar_test_harness::missing("an_editor_is_left_and_found_again_as_it_was", "vim");
        return Ok(());
    }
    let mut server = Server::start()?;
    let begin = r#"
one = Person("session", "new", "--name", "edit", "--", "vim", "-u", "NONE", "file")
one.until(b"file"); one.type(b"ifirst words"); one.until(b"first words")
one.type(b"\x01"); time.sleep(0.2); one.type(b"d")
rest, code = one.left()
expect(code == 0 and b'[detached from edit; "sandbar session attach edit" comes back]' in rest, (rest, code))
expect(b"\x1b[?1049l" in rest, rest)
"#;
    done(&mut people(&server, begin))?;
    server.kill()?;
    server.restart()?;
    let again = r#"
one = Person("session", "attach", "edit", rows=30, cols=100)
before = one.until(b"first words")
expect(b"\x1b[?1049h" in before, before)
one.type(b" and more"); one.until(b"and more")
two = Person("attach", "edit", "--view", rows=40, cols=120)
two.until(b"first words and more"); two.until(b"you look on")
one.type(b"\x1b:w\r"); one.until(b"written"); two.until(b"written")
one.type(b":q\r")
for person in (one, two):
    rest, code = person.left()
    expect(code == 0 and b"\x1b[?1049l" in rest, (rest, code))
"#;
    done(&mut people(&server, again))?;
    assert_eq!(done(&mut server.command(&["exec", "edit", "--", "cat", "file"]))?, "first words and more\n");
    done(&mut server.command(&["session", "rm", "edit"]))?;
    Ok(())
}

#[test]
fn several_look_on_and_one_controls() -> Outcome {
    let server = Server::start()?;
    let script = r#"
one = Person("session", "new", "--name", "shared", "--", "sh")
one.until(b"$ "); one.type(b"stty size\n"); one.until(b"24 80\r\n")
two = Person("attach", "shared", rows=10, cols=60)
two.until(b"24 80"); two.until(b"you see a part"); two.until(b"Ctrl-A t takes control")
two.type(b"echo never-$((1+1))\n"); two.until(b"not typed")
two.type(b"\x01?"); two.until(b"Ctrl-A d detaches")
two.type(b"\x01t"); two.until(b"you have control"); one.until(b"you look on")
two.type(b"stty size\n"); two.until(b"10 60\r\n"); one.until(b"10 60\r\n")
two.size(12, 70)
two.type(b"until [ \"$(stty size)\" = '12 70' ]; do sleep 0.02; done; echo resized-$((1+1))\n"); two.until(b"resized-2")
one.type(b"echo lost-$((1+1))\n"); one.until(b"not typed")
three = Person("attach", "shared", "--take"); three.until(b"resized-2"); two.until(b"you look on")
three.type(b"echo mine-$((1+1))\n"); three.until(b"mine-2")
for person in (one, two, three): person.type(b"\x01r")
for person in (one, two, three): person.until(b"mine-2"); person.until(b"$")
# A signal, a closed window: only the one who got it leaves.
os.kill(three.pid, 15); rest, code = three.left(); expect(code == 0 and b"comes back" in rest, (rest, code))
os.close(two.fd); os.waitpid(two.pid, 0)
one.type(b"\x01t"); one.until(b"you have control")
one.type(b"echo all-$((1+1)); exit 7\n"); seen = one.until(b"all-2")
expect(b"never-2" not in seen and b"lost-2" not in seen, seen)
rest, code = one.left(); expect(code == 7, (rest, code))
"#;
    done(&mut people(&server, script))?;
    done(&mut server.command(&["session", "rm", "shared"]))?;
    Ok(())
}

#[tokio::test]
async fn only_keys_are_commands_and_queries_are_no_keys() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    // `cat -v` shows what arrives; bracketed paste is on.
    start(&server, r"stty raw -echo; printf '\033[?2004hready'; exec cat -v").await?;
    let keys = r#"
one = Person("attach", "a"); one.until(b"ready")
one.type(b"\x01"); time.sleep(0.2); one.type(b"x"); one.until(b"^Ax")
one.type(b"\x01a."); one.until(b"^A."); one.type(b"\x01\x01,"); one.until(b"^A,")
one.type(b"\x1b[20"); time.sleep(0.2); one.type(b"0~pasted\x01d\x01t\x1b[201~"); one.until(b"^[[200~pasted^Ad^At^[[201~")
one.type(b"\x01d"); rest, code = one.left(); expect(code == 0, (rest, code))
os.environ["SANDBAR_DETACH_KEYS"] = "ctrl-p,ctrl-q"
one = Person("attach", "a", "--take"); one.until(b"pasted"); one.type(b"\x01d."); one.until(b"^Ad.")
one.type(b"\x10\x11"); rest, code = one.left(); expect(code == 0, (rest, code))
one = Person("attach", "a", "--take", "--detach-keys", "none"); one.until(b"pasted"); one.type(b"\x10\x11."); one.until(b"^P^Q.")
os.kill(one.pid, 1); rest, code = one.left(); expect(code == 0 and b"\x1b[?2004l" in rest, (rest, code))
"#;
    done(&mut people(&server, keys))?;
    for (variable, argument) in [("ctrl-1", "--view"), ("", "--detach-keys=ctrl-a;d")] {
        let refused = server.command(&["attach", "a", argument]).env("SANDBAR_DETACH_KEYS", variable).output()?;
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains("ctrl-a,d"), "{}", text(&refused.stderr));
    }
    // The person's terminal answers nothing here: what the program gets is the server's answer, once. An answer that is
    // late is none, and the question is put again.
    let query = r#"
ask = "printf '\\033[6n' >&2; timeout --foreground 10 head -c 6 | cat -v"
once = 'while answer=$(%s); [ -z "$answer" ]; do :; done; printf %%s "$answer"; timeout --foreground 1 cat -v' % ask
one = Person("exec", "-t", "a", "sh", "-c", "stty raw -echo; printf xy; " + once + "; printf .end")
shown = one.until(b".end")
expect(b"xy^[[1;3R.end" in shown and b"\x1b[6n" not in shown, shown)
rest, code = one.left(); expect(code == 0, (rest, code))
"#;
    done(&mut people(&server, query))?;
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

/// Without a terminal at either end, so that every byte can be compared.
#[tokio::test]
async fn nothing_is_lost_or_doubled_when_the_server_dies_under_an_attached_client() -> Outcome {
    const LINES: usize = 400;
    let mut server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let script = r#"stty -echo -onlcr; echo ready
        while read word; do echo "got $word"; seq 1 50; [ "$word" = end ] && exit 9; done"#;
    let process = start(&server, script).await?;
    ready(&server, &process).await?;
    let mut client = server.command(&["attach", "a", &process, "--take"]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = client.stdin.take().ok_or("no stdin")?;
    let mut stdout = client.stdout.take().ok_or("no stdout")?;
    let typing = std::thread::spawn(move || {
        for line in 0..LINES {
            stdin.write_all(format!("word-{line}\n").as_bytes())?;
            std::thread::sleep(Duration::from_millis(10));
        }
        stdin.write_all(b"end\n")
    });
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        stdout.read_to_end(&mut all).map(|_| all)
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.kill()?;
        server.restart()?;
    }
    typing.join().map_err(|_| "the typist panicked")??;
    let shown = text(&reading.join().map_err(|_| "the reader panicked")??);
    let ended = client.wait_with_output()?;
    assert_eq!(ended.status.code(), Some(9), "{}", text(&ended.stderr));
    let numbers: String = (1..=50).map(|number| format!("{number}\n")).collect();
    let answer = |word: String| format!("got {word}\n{numbers}");
    let words = (0..LINES).map(|line| format!("word-{line}")).chain(["end".to_owned()]);
    let expected = "ready\n".to_owned() + &words.map(answer).collect::<String>();
    let shown = shown.replace("\r\n", "\n");
    let differ = shown.bytes().zip(expected.bytes()).position(|(is, should)| is != should);
    let around = differ.map(|at| &shown[at.saturating_sub(100)..(at + 100).min(shown.len())]);
    assert!(shown == expected, "{} of {} bytes, differing at {around:?}", shown.len(), expected.len());
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

/// A person's terminal that lives on in this test: what is printed there is kept, with the sizes it had.
struct Desk {
    bridge: std::process::Child,
    orders: std::process::ChildStdin,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Each from a byte on.
    sizes: Vec<(usize, u16, u16)>,
}

impl Desk {
    fn sit(server: &Server, (cols, rows): (u16, u16), arguments: &[&str]) -> Outcome<Self> {
        let bridge = r#"
import threading
rows, cols = map(int, sys.argv[2:4])
one = Person(*sys.argv[4:], rows=rows, cols=cols)
def obey():
    for order in sys.stdin:
        word, *rest = order.split()
        if word == "size": one.size(*map(int, rest))
        else: one.type(bytes.fromhex(rest[0]))
    os._exit(0)
threading.Thread(target=obey, daemon=True).start()
while data := one.read(60): os.write(1, data)
"#;
        let mut command = people(server, bridge);
        command.args([rows.to_string(), cols.to_string()]).args(arguments);
        let mut bridge = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, mut printed) = (bridge.stdin.take().ok_or("no stdin")?, bridge.stdout.take().ok_or("no stdout")?);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = printed.read(&mut piece) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
            }
        });
        Ok(Self { bridge, orders, seen, sizes: vec![(0, cols, rows)] })
    }

    fn printed(&self) -> Vec<u8> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn types(&mut self, keys: &str) -> Outcome {
        let keys: String = keys.bytes().map(|byte| format!("{byte:02x}")).collect();
        Ok(writeln!(self.orders, "type {keys}")?)
    }

    fn size(&mut self, cols: u16, rows: u16) -> Outcome {
        self.sizes.push((self.printed().len(), cols, rows));
        Ok(writeln!(self.orders, "size {rows} {cols}")?)
    }

    /// What the person sees.
    fn screen(&self) -> Screen {
        let printed = self.printed();
        let mut screen = Screen::new(self.sizes[0].1, self.sizes[0].2, 0);
        for (index, (from, cols, rows)) in self.sizes.iter().enumerate() {
            let until = self.sizes.get(index + 1).map_or(printed.len(), |next| next.0);
            screen.resize(*cols, *rows);
            assert!(screen.feed(&printed[*from..until]).is_empty(), "the person's terminal is asked something");
        }
        screen
    }

    /// Waits until the person sees the part from `left` and `top` on of what the terminal shows, and its cursor there.
    async fn sees(&self, what: &str, server: &Server, process: &str, (left, top): (u16, u16)) -> Outcome {
        let client = server.client()?;
        let mut last = String::new();
        let seen = crate::support::until(what, async || {
            let view = client.screen("a", process).await?;
            let colours = client.screen_text("a", process, sandbar_api::ScreenFormat::Ansi).await?;
            let (mut real, mine) = (Screen::new(view.size.cols, view.size.rows, 0), self.screen());
            let lines: Vec<_> = colours.lines().take(usize::from(view.size.rows)).collect();
            real.feed(lines.join("\r\n").as_bytes());
            let (cols, rows) = mine.size();
            let expected = real.part_rows(Part { left, top, cols, rows });
            let shown = mine.part_rows(Part { left: 0, top: 0, cols, rows });
            let (row, col) = mine.cursor();
            let cursors = [(view.cursor.row, view.cursor.col), (top + row, left + col)];
            last = format!("{cursors:?}\n{}\n{}", expected.join("\n"), shown.join("\n"));
            Ok(shown == expected && cursors[0] == cursors[1])
        });
        let seen = seen.await;
        seen.map_err(|error| format!("{error}\n{last}").into())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.bridge.kill();
        let _ = self.bridge.wait();
    }
}

/// Fills the screen, in colours, anew when that has another size and at `draw`; `x,y` moves the cursor there.
const FULL_SCREEN: &str = r#"
import os, signal, sys
def draw(*_):
    cols, rows = os.get_terminal_size()
    out = "\x1b[?1049h\x1b[2J"
    for row in range(rows):
        line = "".join("%s%d.%d|" % ("\u65e5" if row == 5 else "r", row, col) for col in range(0, cols, 8))
        out += "\x1b[%d;1H\x1b[3%d;1m%s\x1b[m" % (row + 1, row % 8, line[:cols - 12])
    print(out + "\x1b]52;c;QUFB\x07\x1b[6;1H", end="", flush=True)
os.system("stty -echo")
signal.signal(signal.SIGWINCH, draw)
draw()
for order in sys.stdin:
    if order.strip() == "main": print("\x1b[?1049lback on the main screen", end="", flush=True)
    elif order.strip() == "draw": draw()
    elif "," in order: print("\x1b[%d;%dH" % tuple(map(int, order.split(",")[::-1])), end="", flush=True)
"#;

#[tokio::test]
async fn a_small_window_shows_the_part_with_the_cursor() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let request = sandbar_api::StartProcess {
        argv: ["python3", "-c", FULL_SCREEN].map(str::to_owned).to_vec(),
        terminal: Some(sandbar_api::TerminalSize { cols: 100, rows: 30 }),
        stdin: true,
        ..sandbar_api::StartProcess::default()
    };
    let client = server.client()?;
    let process = client.start_process("a", &request).await?.id.to_string();
    crate::support::until("it draws", async || Ok(client.screen("a", &process).await?.lines[29].contains("r29")))
        .await?;

    let mut holder = Desk::sit(&server, (100, 30), &["attach", "a"])?;
    holder.sees("all of it by who controls it", &server, &process, (0, 0)).await?;
    let mut desk = Desk::sit(&server, (49, 30), &["attach", "a", "--view"])?;
    crate::support::until("a notice", async || {
        let shown = desk.screen().text().replace('\n', " ");
        let told = "the terminal is 100x30, this window 49x30: you see a part; Ctrl-A t takes control and fits it";
        Ok(shown.contains("somebody at the server (socket) has control") && shown.contains(told))
    })
    .await?;
    desk.sees("the left part", &server, &process, (0, 0)).await?;
    holder.types("90,28\n")?;
    desk.sees("the right part", &server, &process, (48, 0)).await?;
    desk.size(49, 12)?;
    desk.sees("the lower right part", &server, &process, (48, 18)).await?;
    holder.types("3,2\n")?;
    desk.sees("the upper left part", &server, &process, (0, 0)).await?;

    desk.size(120, 40)?;
    desk.sees("all in a larger window", &server, &process, (0, 0)).await?;
    holder.types("60,20\n")?;
    desk.sees("what is passed on", &server, &process, (0, 0)).await?;
    desk.size(49, 30)?;
    desk.sees("a part again", &server, &process, (24, 0)).await?;

    desk.types("\x01t")?;
    crate::support::until("the terminal fits", async || Ok(client.screen("a", &process).await?.size.cols == 49))
        .await?;
    crate::support::until("it is told", async || Ok(text(&desk.printed()).contains("you have control"))).await?;
    // Over the notice, which stays on a row that nobody draws.
    desk.types("draw\n")?;
    desk.sees("all of it after taking control", &server, &process, (0, 0)).await?;
    desk.types("main\n")?;
    desk.sees("the main screen", &server, &process, (0, 0)).await?;
    holder.types("\x01t")?;
    crate::support::until("it is large again", async || Ok(client.screen("a", &process).await?.size.cols == 100))
        .await?;
    desk.sees("a part when somebody else took control", &server, &process, (0, 0)).await?;
    assert!(!text(&desk.printed()).contains("\x1b]52"), "the clipboard is the person's own");
    desk.types("\x01d")?;
    crate::support::until("it leaves", async || Ok(text(&desk.printed()).contains("comes back]"))).await?;
    let left = desk.screen();
    assert!(left.cursor_visible() && !left.alternate_screen());
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_attached_to_is_told() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let plain = done(&mut server.command(&["exec", "-d", "a", "--", "sleep", "1000"]))?;
    let refused = |arguments: &[&str], says: &str| -> Outcome {
        let output = server.command(arguments).stdin(Stdio::null()).output()?;
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
        Ok(())
    };
    refused(&["attach", "a"], "nothing runs in a terminal of a")?;
    refused(&["attach", "a", plain.trim()], "terminal")?;
    refused(&["attach", "a", "prc-00000000000000000000000000"], "prc-00000000000000000000000000")?;
    refused(&["attach", "nobody"], "nobody")?;
    let first = start(&server, "printf shown; exit 3").await?;
    let client = server.client()?;
    crate::support::until("it ends", async || Ok(client.process("a", &first).await?.exit.is_some())).await?;
    // Also after its end: what it showed, and its code.
    let ended = server.command(&["attach", "a", &first]).stdin(Stdio::null()).output()?;
    assert_eq!((text(&ended.stdout).as_str(), ended.status.code()), ("shown", Some(3)));
    let (one, two) = (start(&server, "sleep 1000").await?, start(&server, "sleep 1000").await?);
    let several = server.command(&["attach", "a"]).output()?;
    let told = text(&several.stderr);
    assert!(several.status.code() == Some(2) && told.contains(&one) && told.contains(&two), "{told}");
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test]
async fn over_tls_a_viewers_token_looks_on_and_an_operators_types() -> Outcome {
    let place = tempfile::tempdir()?;
    let path = |name: &str| place.path().join(name);
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    std::fs::write(path("cert.pem"), made.cert.pem())?;
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem())?;
    let (cert, key, up) = (path("cert.pem"), path("key.pem"), path("up"));
    let secure =
        format!("#!/bin/sh\nexec '{SANDBAR}' \"$@\" --tls-cert '{}' --tls-key '{}'\n", cert.display(), key.display());
    std::fs::write(&up, secure)?;
    done(Command::new("chmod").arg("700").arg(&up))?;
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let server = Server::start_by(up, path("home"))?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let process = start(&server, "stty -echo -onlcr; echo ready; read word; echo got $word; exit 4").await?;
    ready(&server, &process).await?;
    let base = server.base()?;
    assert!(base.starts_with("https://"), "{base}");
    let as_role = |role: &str, argument: Option<&str>| -> Outcome<std::process::Child> {
        let token = done(&mut server.command(&["--json", "token", "create", "--name", role, "--role", role]))?;
        let token: serde_json::Value = serde_json::from_str(&token)?;
        let mut command = Command::new(SANDBAR);
        command.args(["attach", "a", &process]).args(argument).env("SANDBAR_SERVER", &base);
        command.env("SANDBAR_TOKEN", token["secret"].as_str().ok_or("no secret")?).env("SSL_CERT_FILE", &cert);
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    };
    let refused = as_role("viewer", Some("--take"))?.wait_with_output()?;
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("--view") || text(&refused.stderr).contains("control"));
    let (viewer, mut operator) = (as_role("viewer", None)?, as_role("operator", None)?);
    operator.stdin.take().ok_or("no stdin")?.write_all(b"word\n")?;
    for client in [viewer, operator] {
        let ended = client.wait_with_output()?;
        assert_eq!(text(&ended.stdout), "ready\ngot word\n", "{}", text(&ended.stderr));
        assert_eq!(ended.status.code(), Some(4));
    }
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}
