//! Two servers on one PostgreSQL, on a real cluster: either answers for both, either can be killed, and what one that was
//! overtaken still wanted to do is not done.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use rustix::process::{Pid, Signal, kill_process};
use sandbar_api::{Code, CreateSandbox, ExecRequest, SandboxState, StartProcess};
use sandbar_client::{Client, OutputItem, Patience, SandboxQuery};

use crate::support::{
    Outcome,
    cluster::{Cluster, Namespace},
    database::{Database, PASSWORD},
    done, expect_counted, expect_gapless, program, quiet_port, text, until,
};

/// For another server to lead after one is gone: seconds, but for a busy host.
const TAKEOVER: Duration = Duration::from_secs(60);
/// And to have found every sandbox again.
const ADOPTED: Duration = Duration::from_secs(120);
const LEADS: &str = "this server leads";
const STANDS_BY: &str = "standing by at";

/// One of the two: a home, an address, and a process while it runs.
struct Server {
    home: tempfile::TempDir,
    port: u16,
    url: String,
    process: Option<Child>,
}

impl Server {
    fn new(url: String) -> Outcome<Self> {
        Ok(Self { home: tempfile::tempdir()?, port: quiet_port(Ipv4Addr::LOCALHOST)?, url, process: None })
    }

    /// Returns when its log says so, which begins anew.
    async fn start(&mut self, says: &str) -> Outcome {
        let log = fs::File::create(self.home.path().join("log"))?;
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(program());
        command.args(["up", "--provider", "kubernetes", "--listen", &listen]).env("SANDBAR_DATABASE", &self.url);
        command.env("SANDBAR_HOME", self.home.path()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.spawn()?);
        self.until_says(says).await
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    async fn until_says(&self, words: &str) -> Outcome {
        let said = until(words, async || Ok(self.log().contains(words))).await;
        Ok(said.map_err(|error| format!("{error}: {}", self.log()))?)
    }

    /// It leads, and answers as the one that does.
    async fn takes_over(&self, since: Instant) -> Outcome {
        self.until_says(LEADS).await?;
        let leads = since.elapsed();
        self.until_says("sign in").await?;
        let adopted = since.elapsed();
        eprintln!("leads after {leads:?}, answers after {adopted:?}");
        assert!(leads < TAKEOVER && adopted < ADOPTED, "{leads:?}, {adopted:?}: {}", self.log());
        Ok(())
    }

    fn client(&self, token: &str) -> Outcome<Client> {
        let quick = Patience { first: Duration::from_millis(20), longest: Duration::from_millis(200), total: ADOPTED };
        Ok(Client::tcp(&format!("http://127.0.0.1:{}", self.port), Some(token))?.with_patience(quick))
    }

    fn pid(&self) -> Outcome<Pid> {
        let id = self.process.as_ref().ok_or("it does not run")?.id();
        Ok(Pid::from_raw(i32::try_from(id)?).ok_or("no pid")?)
    }

    fn kill(&mut self) -> Outcome {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// By itself, soon.
    async fn ends(&mut self) -> Outcome<ExitStatus> {
        let mut process = self.process.take().ok_or("it does not run")?;
        let mut ended = None;
        let waited = until("it ends", async || {
            ended = process.try_wait()?;
            Ok(ended.is_some())
        });
        if let Err(error) = waited.await {
            self.process = Some(process);
            return Err(format!("{error}: {}", self.log()).into());
        }
        Ok(ended.ok_or("it runs")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.port, self.log());
        }
        let _killed = self.kill();
    }
}

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() }
}

fn shell(script: &str) -> ExecRequest {
    ExecRequest {
        argv: ["sh", "-c", script].map(String::from).into(),
        env: [].into(),
        cwd: None,
        timeout: None,
        stdin: None,
        max_output: sandbar_api::process::default_output_cap(),
    }
}

/// All that a process wrote, each byte once, over however many servers.
async fn follow(client: Client, process: String) -> Outcome<Vec<u8>> {
    let mut seen = Vec::new();
    let mut output = std::pin::pin!(client.output("steady", &process, Some(0), true));
    while let Some(item) = output.next().await {
        match item? {
            OutputItem::Chunk(chunk) => {
                assert_eq!(chunk.offset, seen.len() as u64, "a byte is missing or came twice");
                seen.extend(chunk.data);
            }
            OutputItem::Exit(_) => break,
        }
    }
    Ok(seen)
}

/// Whoever was cut off asks again, with the same key; what the server was in the middle of is given up, which it says, and
/// is asked for anew.
async fn make(client: Client, number: u32) -> Outcome<String> {
    let deadline = Instant::now() + ADOPTED + TAKEOVER;
    let mut attempt = 0;
    loop {
        let name = format!("made-{number}-{attempt}");
        match client.create(&named(&name), Some(&format!("key-of-{name}"))).await {
            Ok(created) => return Ok(created.sandbox.id.to_string()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(error) if error.code() == Some(Code::SandboxGone) => attempt += 1,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Events as they come, from the first to the one that makes `the-end`; how many there were.
async fn witness(client: Client) -> Outcome<u64> {
    let mut next = 1;
    let mut events = std::pin::pin!(client.events(Some(1), None));
    while let Some(event) = events.next().await {
        let event = event?;
        assert_eq!(event.seq, next, "an event is missing or came twice");
        next += 1;
        if event.data["name"] == "the-end" {
            return Ok(next - 1);
        }
    }
    Err("the events end".into())
}

/// The sandboxes there are; one that was given up is none.
async fn ids(client: &Client) -> Outcome<Vec<String>> {
    let mut names = vec![];
    let mut all = std::pin::pin!(client.sandboxes(SandboxQuery::default()));
    while let Some(sandbox) = all.next().await {
        let sandbox = sandbox?;
        if sandbox.state != SandboxState::Failed {
            names.push(sandbox.id.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// The claims there are, by the ids of their sandboxes.
fn claims(namespace: &Namespace) -> Outcome<Vec<String>> {
    let listed = namespace.names("sandboxclaims")?;
    let mut ids: Vec<String> = listed.iter().filter_map(|name| Some(name.split_once('/')?.1.to_owned())).collect();
    ids.sort();
    Ok(ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_of_two_servers_answers_for_both_and_can_be_killed() -> Outcome {
    let test = "either_of_two_servers_answers_for_both_and_can_be_killed";
    let Some(cluster) = Cluster::or_not_run(test) else { return Ok(()) };
    let Some(database) = Database::or_not_run(test, Ipv4Addr::LOCALHOST)? else { return Ok(()) };
    let (mut one, mut two) = (Server::new(database.url())?, Server::new(database.url())?);
    let namespace = Namespace::of(&cluster, one.home.path())?;
    done(Command::new(program()).args(["kubernetes", "key"]).env("SANDBAR_HOME", one.home.path()))?;
    fs::copy(one.home.path().join("secret.key"), two.home.path().join("secret.key"))?;
    for server in [&one, &two] {
        namespace.furnish(server.home.path(), "reach = \"pod_ip\"")?;
    }
    one.start("sign in").await?;
    two.start(STANDS_BY).await?;
    assert!(two.log().contains(&format!("127.0.0.1:{}", one.port)), "who leads is not told: {}", two.log());
    let create = ["token", "create", "--name", "test", "--role", "admin"];
    let token = done(Command::new(program()).args(create).env("SANDBAR_HOME", one.home.path()))?.trim().to_owned();
    let (by_one, by_two) = (one.client(&token)?, two.client(&token)?);

    // The same request to both at once.
    let steady = named("steady");
    let (here, there) =
        tokio::join!(by_one.create(&steady, Some("same-key-1")), by_two.create(&steady, Some("same-key-1")));
    let (here, there) = (here?, there?);
    assert_eq!(here.sandbox.id, there.sandbox.id);
    assert!(here.replayed != there.replayed, "both made it, or none");
    assert_eq!(claims(&namespace)?, [here.sandbox.id.to_string()]);

    let script =
        "i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); [ $((i % 64)) = 0 ] && sleep 0.1; done; echo end";
    let counter = StartProcess { argv: shell(script).argv, ..StartProcess::default() };
    let counter = by_two.start_process("steady", &counter).await?.id.to_string();
    let viewers = [&by_one, &by_two]
        .map(|client| (tokio::spawn(follow(client.clone(), counter.clone())), tokio::spawn(witness(client.clone()))));

    // The leader dies while others are being made.
    let making: Vec<_> = (0..4)
        .map(|number| {
            let client = by_two.clone();
            tokio::spawn(make(client, number))
        })
        .collect();
    until("some are being made", async || Ok(claims(&namespace)?.len() > 1)).await?;
    let killed = Instant::now();
    one.kill()?;
    two.takes_over(killed).await?;
    let mut made = vec![here.sandbox.id.to_string()];
    for create in making {
        made.push(create.await??);
    }
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 5, "one request, one sandbox");
    assert_eq!(ids(&by_two).await?, made);
    // The claims of what was given up go.
    until("each sandbox has its claim, and nothing else has one", async || Ok(claims(&namespace)? == made)).await?;
    for id in &made {
        assert_eq!(by_two.sandbox(id).await?.state, SandboxState::Ready);
        assert_eq!(by_two.exec(id, &shell("echo alive")).await?.stdout, "alive\n");
    }

    one.start(STANDS_BY).await?;
    assert_eq!(ids(&by_one).await?, made);
    let killed = Instant::now();
    two.kill()?;
    one.takes_over(killed).await?;
    two.start(STANDS_BY).await?;
    assert_eq!((ids(&by_one).await?, ids(&by_two).await?), (made.clone(), made.clone()));
    assert_eq!(claims(&namespace)?, made);

    expect_overtaken_does_nothing(&mut one, &two, &database, &token).await?;
    assert_eq!(ids(&by_two).await?, made);
    assert_eq!(claims(&namespace)?, made, "who does not lead made or removed something");
    one.start(STANDS_BY).await?;

    by_one.exec("steady", &shell("touch /tmp/stop")).await?;
    let last = by_two.create(&named("the-end"), None).await?.sandbox.id.to_string();
    let mut counted = vec![];
    for (output, events) in viewers {
        let seen = tokio::time::timeout(Duration::from_secs(300), output).await???;
        expect_counted(&seen)?;
        counted.push((seen, tokio::time::timeout(Duration::from_secs(300), events).await???));
    }
    assert!(counted.windows(2).all(|pair| pair[0] == pair[1]), "the two show different things");
    assert_eq!(expect_gapless(&by_one).await?, expect_gapless(&by_two).await?);

    made.push(last);
    for id in &made {
        by_one.delete(id).await?;
    }
    until("no claim is left", async || Ok(claims(&namespace)?.is_empty())).await
}

/// The leader stands still for so long that another leads; when it goes on, it ends.
async fn expect_overtaken_does_nothing(old: &mut Server, new: &Server, database: &Database, token: &str) -> Outcome {
    let stopped = Instant::now();
    kill_process(old.pid()?, Signal::STOP)?;
    // It lies in the old one's socket and is read when that goes on.
    let late = old.client(token)?.with_patience(Patience::NONE);
    let late = tokio::spawn(async move { late.create(&named("late"), None).await });
    database.drop_leader()?;
    new.takes_over(stopped).await?;
    let before = expect_gapless(&new.client(token)?).await?;
    kill_process(old.pid()?, Signal::CONT)?;
    let ended = old.ends().await?;
    assert!(ended.code().is_some_and(|code| code != 0) && ended.signal().is_none(), "{ended}: {}", old.log());
    // By its connection or by a write that was refused, whichever is first.
    assert!(old.log().contains("another server may lead now"), "{}", old.log());
    assert!(late.await?.is_err(), "a server that does not lead has answered");
    let all = new.client(token)?.event_page(before + 1, Some(1000), None).await?;
    assert!(all.iter().all(|event| event.data["name"] != "late"), "{all:?}");
    Ok(())
}

/// How it ends, soon, and what it says.
fn refused(arguments: &[&str], url: &str) -> Outcome<String> {
    let home = tempfile::tempdir()?;
    let mut command = Command::new(program());
    command.args(["up", "--listen", "127.0.0.1:0"]).args(arguments);
    command.env("SANDBAR_HOME", home.path()).env("SANDBAR_DATABASE", url).stdin(Stdio::null());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(300);
    while process.try_wait()?.is_none() {
        if Instant::now() > deadline {
            process.kill()?;
            return Err(format!("it goes on: {:?}", process.wait_with_output()?).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = process.wait_with_output()?;
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(!output.status.success() && said.contains("hint:"), "{said}");
    assert!(!said.contains(PASSWORD) && !said.contains("wrong-word"), "the password is shown: {said}");
    Ok(said)
}

#[test]
fn a_database_that_cannot_be_used_is_refused_without_its_password() -> Outcome {
    let test = "a_database_that_cannot_be_used_is_refused_without_its_password";
    let Some(database) = Database::or_not_run(test, Ipv4Addr::LOCALHOST)? else { return Ok(()) };
    let kubernetes = ["--provider", "kubernetes"];
    for (url, says) in [
        (database.url_of("wrong-word", "postgres"), "password"),
        (database.url_of(PASSWORD, "nowhere"), "nowhere"),
        (format!("postgres://postgres:{PASSWORD}@127.0.0.1:1/postgres"), "127.0.0.1"),
        (format!("mysql://postgres:{PASSWORD}@127.0.0.1/postgres"), "postgres://"),
    ] {
        let said = refused(&kubernetes, &url)?;
        assert!(said.contains(says), "{url}: {said}");
    }
    // Also while another server leads, when it would wait for its turn.
    let said = refused(&[], &database.url())?;
    assert!(said.contains("`local`") && said.contains("--provider kubernetes"), "{said}");
    Ok(())
}
