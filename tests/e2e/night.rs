//! Terminals and answers through a hundred deaths: the server is killed with SIGKILL while programs print, while a viewer
//! reads and types, and while answers are on their way; viewers die too. Afterwards every byte was seen once, every key was
//! typed once, and no answer was lost, doubled, or given to another question.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use sandbar_api::{
    AnswerApproval, ApprovalKind, ApprovalState, Code, Control, CreateSandbox, Delivery, ExecRequest, StartProcess,
    TerminalSize,
};
use sandbar_client::{ApprovalQuery, AttachEvent, AttachOptions, Client, OutputItem, Patience};
use tokio::sync::Notify;

use crate::support::{Dice, Outcome, Server, expect_clean, expect_counted, expect_gapless};

/// On a host so busy that hardly any answer is told before the next death.
const MOST_ROUNDS: u32 = 400;
/// So many answers must have been told for the test to mean something.
const ENOUGH: u32 = 11;
const NAME: &str = "night";

const COUNTER: &str =
    "i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); [ $((i % 64)) = 0 ] && sleep 0.01; done; echo end";
/// What is answered to one question is wrong for the next.
const ASKER: &str = "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); read -r -p \"Apply change $n? [y/n] \" answer; \
                     echo \"change $n: <$answer>\"; done";
const CAT: &str = "stty -echo; echo ready; exec cat";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_lose_and_double_nothing() -> Outcome {
    let seed = u64::from(std::process::id()) + 0x9e37_79b9_7f4a_7c15;
    eprintln!("seed {seed:#x}");
    let mut dice = Dice(seed);
    let mut server = Server::start()?;
    let quick = |ms| Duration::from_millis(ms);
    let patience = Patience { first: quick(2), longest: quick(20), total: Duration::from_secs(600) };
    let client = server.client()?.with_patience(patience);
    client.create(&CreateSandbox { name: Some(NAME.into()), ..Default::default() }, None).await?;
    let counter = start(&client, COUNTER).await?;
    let asker = start(&client, ASKER).await?;
    let cat = start(&client, CAT).await?;

    let over = Arc::new(AtomicBool::new(false));
    let (answering, answers) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
    let viewer = tokio::spawn(view(client.clone(), counter.clone()));
    let mortal = tokio::spawn(view_and_die(client.clone(), counter.clone(), Dice(seed ^ 1)));
    let typist = tokio::spawn(type_numbers(client.clone(), cat.clone(), over.clone()));
    let answerer = tokio::spawn(answer(server.impatient()?, answering.clone(), answers.clone(), over.clone()));
    let is_enough = || answers.load(Ordering::SeqCst) >= ENOUGH || answerer.is_finished();
    let (least, mut rounds) = (sandbar_test_harness::endurance(20, 100), 0);
    while rounds < least || rounds < MOST_ROUNDS && !is_enough() {
        rounds += 1;
        if dice.roll(2) == 0 {
            // In the middle of an answer, if there is one soon.
            let _there_is = tokio::time::timeout(quick(1500), answering.notified()).await;
            tokio::time::sleep(Duration::from_micros(dice.roll(6000))).await;
        } else {
            tokio::time::sleep(quick(5 + dice.roll(700))).await;
        }
        server.kill()?;
        server.restart()?;
    }
    over.store(true, Ordering::SeqCst);
    let told = answerer.await??;
    let typed = typist.await??;
    let stop = ExecRequest {
        argv: ["touch", "/tmp/stop"].map(String::from).into(),
        env: BTreeMap::new(),
        cwd: None,
        timeout: None,
        stdin: None,
        max_output: sandbar_api::process::default_output_cap(),
    };
    client.exec(NAME, &stop).await?;
    expect_counted(&viewer.await??)?;
    expect_counted(&mortal.await??)?;
    expect_answered(&client, &asker, &told).await?;
    expect_typed(&client, &cat, typed).await?;
    expect_gapless(&client).await?;
    client.delete(NAME).await?;
    server.kill()?;
    expect_clean(server.home.path())
}

async fn start(client: &Client, script: &str) -> Outcome<String> {
    let argv = ["bash", "-c", script].map(String::from).into();
    let terminal = Some(TerminalSize { cols: 80, rows: 24 });
    Ok(client.start_process(NAME, &StartProcess { argv, terminal, ..Default::default() }).await?.id.to_string())
}

/// One attachment through all deaths of the server.
async fn view(client: Client, process: String) -> Outcome<Vec<u8>> {
    let mut seen = Vec::new();
    see(&client, &process, &mut seen, u64::MAX).await?;
    Ok(seen)
}

/// Dies again and again, and comes back for the next byte.
async fn view_and_die(client: Client, process: String, mut dice: Dice) -> Outcome<Vec<u8>> {
    let mut seen = Vec::new();
    while !see(&client, &process, &mut seen, 1 + dice.roll(40)).await? {}
    Ok(seen)
}

/// Adds what comes until the exit, or until so many events were seen. Whether it was the exit.
async fn see(client: &Client, process: &str, seen: &mut Vec<u8>, events: u64) -> Outcome<bool> {
    let options = AttachOptions { from: Some(seen.len() as u64), raw: true, ..AttachOptions::default() };
    let mut attachment = client.attach(NAME, process, options).await?;
    for _ in 0..events {
        match attachment.next().await.ok_or("the terminal ended without an exit")?? {
            AttachEvent::Output { offset, data } => {
                seen.extend_from_slice(&data);
                assert_eq!(offset, seen.len() as u64, "a byte is missing or came twice");
            }
            AttachEvent::Exit(_) => return Ok(true),
            AttachEvent::Skipped { from, to } => return Err(format!("{from} to {to} were skipped").into()),
            _ => {}
        }
    }
    Ok(false)
}

/// Types 0, 1, 2, … and gives how many.
async fn type_numbers(client: Client, process: String, over: Arc<AtomicBool>) -> Outcome<u64> {
    let options = AttachOptions { raw: true, control: Control::Take, ..AttachOptions::default() };
    let mut attachment = client.attach(NAME, &process, options).await?;
    let typist = attachment.typist();
    let reader = tokio::spawn(async move {
        while let Some(event) = attachment.next().await {
            if let AttachEvent::Lost { bytes } = event? {
                return Err(format!("{bytes} bytes of keys were lost").into());
            }
        }
        Outcome::Ok(())
    });
    let mut number = 0u64;
    while !over.load(Ordering::SeqCst) {
        typist.send(format!("{number}\n")).await?;
        number += 1;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    // What it was given last comes back last.
    let end = format!("{}", number - 1);
    let deadline = Instant::now() + Duration::from_secs(300);
    while !text(&client, &process).await?.lines().any(|line| line == end) {
        if Instant::now() > deadline {
            return Err(format!("the key {end} did not come back").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    reader.abort();
    Ok(number)
}

/// What was said to be typed, by question.
async fn answer(
    client: Client,
    answering: Arc<Notify>,
    answers: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
) -> Outcome<BTreeMap<u64, &'static str>> {
    let mut told = BTreeMap::new();
    let query = ApprovalQuery { states: vec![ApprovalState::Open], sandbox: Some(NAME.into()), limit: None };
    while !over.load(Ordering::SeqCst) {
        // A dead server is no failure, a wrong answer is.
        let open = client.approvals(&query).await.unwrap_or_default();
        for approval in open.iter().filter(|approval| approval.kind == ApprovalKind::Terminal) {
            let Some(number) = number(&approval.question) else {
                return Err(format!("asked about something else: {}", approval.question).into());
            };
            let choice = wanted(number);
            answering.notify_one();
            let request = AnswerApproval { choice: choice.into(), text: None };
            match client.answer_approval(approval.id.as_str(), &request).await {
                Ok(answered) => {
                    assert_ne!(answered.delivery, Some(Delivery::Refused));
                    assert!(told.insert(number, choice).is_none(), "question {number} was answered twice");
                    answers.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) if matches!(error.code(), None | Some(Code::ScreenMoved | Code::ApprovalClosed)) => {}
                Err(error)
                    if matches!(error.code(), Some(Code::ShuttingDown | Code::GuestUnreachable | Code::WrongState)) => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(told)
}

fn number(question: &str) -> Option<u64> {
    question.split_once("Apply change ")?.1.split_once('?')?.0.parse().ok()
}

fn wanted(number: u64) -> &'static str {
    if number.is_multiple_of(2) { "yes" } else { "no" }
}

async fn text(client: &Client, process: &str) -> Outcome<String> {
    let mut bytes = Vec::new();
    let mut output = std::pin::pin!(client.output(NAME, process, Some(0), false));
    while let Some(item) = output.next().await {
        if let OutputItem::Chunk(chunk) = item? {
            bytes.extend(chunk.data);
        }
    }
    Ok(String::from_utf8(bytes)?.replace('\r', ""))
}

/// The answers that a program says it got, by question, of what it has printed.
fn got(printed: &str) -> Vec<(u64, &str)> {
    let (whole, _) = printed.rsplit_once('\n').unwrap_or_default();
    whole
        .lines()
        .filter_map(|line| line.strip_prefix("change ")?.split_once(": "))
        .map(|(number, answer)| (number.parse().unwrap_or(0), answer))
        .collect()
}

async fn expect_answered(client: &Client, process: &str, told: &BTreeMap<u64, &str>) -> Outcome {
    let last = told.keys().last().copied().unwrap_or(0);
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut printed = text(client, process).await?;
    // What was typed is printed when it is read.
    while (got(&printed).len() as u64) < last && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
        printed = text(client, process).await?;
    }
    let got = got(&printed);
    eprintln!("{} answers typed, {} of them told", got.len(), told.len());
    assert!(told.len() >= ENOUGH as usize, "hardly anything was answered");
    for (place, (number, answer)) in got.iter().enumerate() {
        assert_eq!(*number, place as u64 + 1, "a question is missing");
        let wanted = if wanted(*number) == "yes" { "<y>" } else { "<n>" };
        assert_eq!(*answer, wanted, "question {number} got another's answer");
    }
    assert!(last <= got.len() as u64, "an answer that was said to be typed was not: {last} of {}", got.len());
    Ok(())
}

async fn expect_typed(client: &Client, process: &str, typed: u64) -> Outcome {
    let text = text(client, process).await?;
    let lines: Vec<&str> = text.lines().skip_while(|line| *line != "ready").skip(1).collect();
    assert!(typed > 100, "hardly anything was typed");
    assert_eq!(lines.len() as u64, typed, "lines that were typed");
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, number.to_string(), "key {number} is missing or came twice");
    }
    Ok(())
}
