//! One sandbox that wants all of the gate: connections held, heads and bodies and answers without an end. Its neighbour's
//! gate, the server's memory and its API are what is watched meanwhile.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use sandbar_api::{StartProcess, bytes::encode};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    names::RULES,
    stage::{Stage, Target, recipe},
    support::{Outcome, text, until},
    wire::{SILENCE, Step, block, frame, get, status, tunnel_until},
};

const ONE: &[&str] = &["standard"];
/// Of the server's memory, for one sandbox: in KiB.
const SHARE: u64 = 96 * 1024;
/// Connections of one sandbox, and what else a server has open meanwhile.
const DESCRIPTORS: usize = 512 * 2 + 300;
/// Less than the gate waits for a head, after which whoever a crowd holds up would be let go.
const PROMPT: Duration = Duration::from_secs(20);

pub(crate) fn all() -> Vec<Attack> {
    let gate = |name, act, place, control| {
        Attack::act(Class::Gate, name, act, Control::Act(place, control)).on(ONE).with(RULES)
    };
    let unbounded = "a server without a bound";
    vec![
        gate("ten_thousand_connections", act!(connections), unbounded, act!(unbounded_connections)),
        gate("ten_thousand_beginnings_of_requests", act!(beginnings), unbounded, act!(unbounded_connections)),
        gate("ten_thousand_tunnels", act!(tunnels), unbounded, act!(unbounded_connections)),
        gate("endless_head", act!(head), "a head with an end", act!(short_head)),
        gate("endless_line", act!(line), "a head with an end", act!(short_head)),
        gate("endless_fields_of_http2", act!(continuations), "fields with an end", act!(one_stream)),
        gate("requests_taken_back_at_once", act!(resets), "one that is not", act!(one_stream)),
        gate("endless_answers_that_nobody_reads", act!(answers), "by somebody who reads", act!(read_answer)),
        gate("request_to_a_model_without_an_end", act!(body), "one with an end", act!(short_body)),
        gate("twenty_thousand_refusals", act!(refusals), "twenty of them", act!(few_refusals)),
    ]
}

fn descriptors(stage: &Stage) -> Outcome<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", stage.server.pid()))?.count())
}

/// A neighbour's request through its own gate, and a question to the server; how long each took.
async fn others(stage: &Stage, target: &Target) -> Outcome<Result<String, String>> {
    let (mark, port) = (stage.mark(), stage.outside.plain);
    let begun = Instant::now();
    let request = get(&format!("http://open.out.test:{port}/{mark}"), "x");
    let heard = stage.wire(target, &[Step::send(request), Step::Answer(SILENCE)]).await?;
    let neighbour = begun.elapsed();
    let begun = Instant::now();
    stage.client.sandbox(&target.id).await?;
    let server = begun.elapsed();
    let said = format!("neighbour {neighbour:.1?}, API {server:.1?}");
    let fine = status(&heard) == "200" && stage.outside.saw(&mark) && neighbour < PROMPT && server < PROMPT;
    Ok(if fine { Ok(said) } else { Err(format!("{said}, {}", status(&heard))) })
}

/// A culprit that opens all it can and holds it for as long as the others are looked at.
async fn crowd(stage: &Stage, target: &Target, opening: &str) -> Outcome<Finding> {
    let culprit = stage.fresh(target.profile, &recipe(target.profile, RULES, &[])).await?;
    let (before, memory) = (descriptors(stage)?, stage.server.resident()?);
    let argv = ["/workspace/attacks", "--inside", "crowd", "10000", "60000", &encode(opening.as_bytes())];
    let request = StartProcess { argv: argv.map(str::to_owned).to_vec(), ..StartProcess::default() };
    let process = stage.client.start_process(&culprit.id, &request).await?.id.to_string();
    until(
        "the culprit has all it gets",
        async || Ok(stage.client.process(&culprit.id, &process).await?.output.end > 0),
    )
    .await?;
    let held = descriptors(stage)?.saturating_sub(before);
    let taken = stage.server.resident()?.saturating_sub(memory);
    let others = others(stage, target).await;
    let said = crate::terminals::text(stage, &culprit, &process).await?;
    stage.delete(&culprit).await?;
    // What it held is given back.
    until("descriptors are given back", async || Ok(descriptors(stage)? <= before + 50)).await?;
    let told = format!("{}; {held} descriptors, {taken} KiB of the server", said.trim());
    Ok(match others? {
        Err(others) => Finding::escaped(format!("{others}; {told}")),
        Ok(_) if held > DESCRIPTORS || taken > SHARE => Finding::escaped(told),
        Ok(others) => Finding::contained(format!("{others}; {told}")),
    })
}

async fn connections(stage: &Stage, target: &Target) -> Outcome<Finding> {
    crowd(stage, target, "").await
}

async fn beginnings(stage: &Stage, target: &Target) -> Outcome<Finding> {
    crowd(stage, target, "GET http://open.out.test/ HTTP/1.1\r\nX-Slow: {}").await
}

async fn tunnels(stage: &Stage, target: &Target) -> Outcome<Finding> {
    crowd(stage, target, &format!("CONNECT open.out.test:{} HTTP/1.1\r\nHost: x\r\n\r\n", stage.outside.plain)).await
}

/// The outside takes whoever comes: as many as a gate's sandbox may have, and more.
async fn unbounded_connections(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let before = stage.outside.connections("plain");
    let place = format!("at:127.0.0.1:{}", stage.outside.plain);
    let program = stage.scratch.join("attacks");
    let number = "600";
    let ran = tokio::task::spawn_blocking(move || {
        Command::new(program).args(["--inside", "crowd", number, "300", "", &place, "within:30"]).output()
    });
    let said = text(&ran.await??.stdout);
    let taken = || stage.outside.connections("plain") - before;
    // Connected is not yet taken.
    let _late = until("all are taken", async || Ok(taken() >= 600)).await;
    let taken = taken();
    Ok(if taken >= 600 {
        Finding::escaped(format!("{taken} were taken"))
    } else {
        Finding::contained(format!("{taken} were taken: {said}"))
    })
}

/// What a conversation costs the server, and its answer.
async fn weighed(stage: &Stage, target: &Target, steps: &[Step], mark: &str) -> Outcome<Finding> {
    let memory = stage.server.resident()?;
    let heard = stage.wire(target, steps).await?;
    let taken = stage.server.resident()?.saturating_sub(memory);
    let told = format!("{}, {taken} KiB", status(&heard));
    Ok(if stage.outside.saw(mark) || taken > SHARE { Finding::escaped(told) } else { Finding::contained(told) })
}

fn opening(stage: &Stage, mark: &str) -> Step {
    Step::send(format!("GET http://open.out.test:{}/{mark} HTTP/1.1\r\nHost: x\r\n", stage.outside.plain))
}

async fn head(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    let steps = [
        opening(stage, &mark),
        Step::Many(200_000, b"X-More: and more and more\r\n".to_vec()),
        Step::send("\r\n"),
        Step::Rest(SILENCE),
    ];
    weighed(stage, target, &steps, &mark).await
}

async fn line(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    let steps = [
        opening(stage, &mark),
        Step::send("X-Long: "),
        Step::Many(200_000, vec![b'x'; 100]),
        Step::send("\r\n\r\n"),
        Step::Rest(SILENCE),
    ];
    weighed(stage, target, &steps, &mark).await
}

async fn short_head(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    let steps = [
        opening(stage, &mark),
        Step::Many(50, b"X-More: and more\r\n".to_vec()),
        Step::send("Connection: close\r\n\r\n"),
        Step::Answer(SILENCE),
    ];
    weighed(stage, target, &steps, &mark).await
}

/// On a terminated connection, since a tunnel's HTTP/2 is not the gate's.
async fn in_http2(stage: &Stage, target: &Target, then: Vec<Step>, end: Step, mark: &str) -> Outcome<Finding> {
    let mut steps = vec![Step::Tls("judged.out.test", "h2"), Step::send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")];
    steps.push(Step::Send(frame(4, 0, 0, &[])));
    steps.extend(then);
    let steps = tunnel_until(format!("judged.out.test:{}", stage.outside.tls), steps, end);
    let found = weighed(stage, target, &steps, mark).await?;
    Ok(match others(stage, target).await? {
        Err(others) => Finding::escaped(others),
        Ok(_) => found,
    })
}

fn fields(stage: &Stage, path: &str) -> Vec<u8> {
    let authority = format!("judged.out.test:{}", stage.outside.tls);
    let fields: [(&[u8], &[u8]); 4] = [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":authority", authority.as_bytes()),
        (b":path", path.as_bytes()),
    ];
    block(&fields)
}

/// A head that goes on in frame after frame.
async fn continuations(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    let more: Vec<u8> = (0..100).flat_map(|_| block(&[(b"x-more", &[b'y'; 90])])).collect();
    let then = vec![
        Step::Send(frame(1, 1, 1, &fields(stage, &format!("/open/{mark}")))),
        Step::Many(5000, frame(9, 0, 1, &more)),
        Step::Send(frame(9, 4, 1, &[])),
    ];
    in_http2(stage, target, then, Step::Rest(SILENCE), &mark).await
}

/// Each request is cancelled before it can be answered, so that no limit of concurrent ones is reached.
async fn resets(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, before) = (stage.mark(), stage.outside.connections("tls"));
    let one =
        |stream: u32| [frame(1, 5, stream, &fields(stage, "/open/reset")), frame(3, 0, stream, &[0, 0, 0, 8])].concat();
    let then = (0..6).map(|part| Step::Send((0..400).flat_map(|n| one(1 + 2 * (part * 400 + n))).collect())).collect();
    let found = in_http2(stage, target, then, Step::Rest(SILENCE), &mark).await?;
    let opened = stage.outside.connections("tls") - before;
    Ok(match found {
        Finding::Contained(_) if opened > DESCRIPTORS => {
            Finding::escaped(format!("{opened} connections to the server"))
        }
        Finding::Contained(how) => Finding::contained(format!("{how}, {opened} connections to the server")),
        other => other,
    })
}

async fn one_stream(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    let then = vec![Step::Send(frame(1, 5, 1, &fields(stage, &format!("/open/{mark}"))))];
    in_http2(stage, target, then, Step::Answer(SILENCE), &mark).await
}

/// A server that never ends, and fifty clients that look away.
async fn answers(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (memory, port) = (stage.server.resident()?, stage.outside.plain);
    let send = Step::send(get(&format!("http://open.out.test:{port}/endless"), "x")).word();
    let argv = ["/workspace/attacks", "--inside", "storm", "50", &send, "wait:4000"];
    let request = StartProcess { argv: argv.map(str::to_owned).to_vec(), ..StartProcess::default() };
    let culprit = stage.fresh(target.profile, &recipe(target.profile, RULES, &[])).await?;
    let process = stage.client.start_process(&culprit.id, &request).await?.id.to_string();
    let mut most = 0;
    while stage.client.process(&culprit.id, &process).await?.exit.is_none() {
        most = most.max(stage.server.resident()?.saturating_sub(memory));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let others = others(stage, target).await;
    stage.delete(&culprit).await?;
    Ok(match others? {
        Err(others) => Finding::escaped(others),
        Ok(_) if most > SHARE => Finding::escaped(format!("{most} KiB of the server")),
        Ok(others) => Finding::contained(format!("{most} KiB of the server; {others}")),
    })
}

async fn read_answer(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let request = get(&format!("http://open.out.test:{}/endless", stage.outside.plain), "x");
    let heard = stage.wire(target, &[Step::send(request), Step::Answer(SILENCE * 40)]).await?;
    Ok(if heard.len() > 500_000 {
        Finding::escaped(format!("{} bytes came", heard.len()))
    } else {
        Finding::contained(heard)
    })
}

const CALL: &str = "POST /llm/openai/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";

/// Longer than any request to a model may be, said to be so and not.
async fn body(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = stage.outside.upstream.seen().len();
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let memory = stage.server.resident()?;
    let mut said = vec![];
    for steps in [
        vec![Step::send(format!("{CALL}Content-Length: 10000000000\r\n\r\n{{")), Step::Rest(SILENCE)],
        vec![
            Step::send(format!("{CALL}Transfer-Encoding: chunked\r\n\r\n")),
            Step::Many(1100, chunk),
            Step::Rest(SILENCE * 5),
        ],
    ] {
        said.push(status(&stage.wire(target, &steps).await?).to_owned());
    }
    let taken = stage.server.resident()?.saturating_sub(memory);
    let sent = stage.outside.upstream.seen().len() - before;
    let told = format!("{}, {taken} KiB", said.join(", "));
    Ok(if sent > 0 || taken > SHARE { Finding::escaped(told) } else { Finding::contained(told) })
}

async fn short_body(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = stage.outside.upstream.seen().len();
    let body = "{\"model\":\"small\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    let request = format!("{CALL}Content-Length: {}\r\n\r\n{body}", body.len());
    let heard = stage.wire(target, &[Step::send(request), Step::Answer(3000)]).await?;
    let sent = stage.outside.upstream.seen().len() - before;
    Ok(if sent > 0 { Finding::escaped("it was sent") } else { Finding::contained(heard) })
}

/// What the server keeps of them, in its files and its memory.
async fn refused(stage: &Stage, target: &Target, connections: u32, each: usize) -> Outcome<Finding> {
    let culprit = stage.fresh(target.profile, &recipe(target.profile, RULES, &[])).await?;
    let kept = |stage: &Stage| -> Outcome<u64> {
        let files = std::fs::read_dir(stage.server.home.path())?.flatten();
        Ok(files.filter_map(|file| file.metadata().ok()).filter(|file| file.is_file()).map(|file| file.len()).sum())
    };
    let (before, memory) = (kept(stage)?, stage.server.resident()?);
    let send = Step::Many(each, b"GET http://denied.out.test/ HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()).word();
    let last = Step::send(get("http://denied.out.test/", "x")).word();
    let said = stage.client_inside(&culprit, "storm", &[&connections.to_string(), &send, &last, "answer:2000"]).await?;
    let others = others(stage, target).await;
    let taken = stage.server.resident()?.saturating_sub(memory);
    let log = text(&stage.server.command(&["net", "log", &culprit.id]).output()?.stdout);
    stage.delete(&culprit).await?;
    let written = kept(stage)?.saturating_sub(before) / 1024;
    let told = format!("{said}; {written} KiB written, {taken} KiB of the server");
    let number = connections as usize * (each + 1);
    Ok(match others? {
        Err(others) => Finding::escaped(format!("{others}; {told}")),
        Ok(_) if taken > SHARE || written > 32 * 1024 => Finding::escaped(told),
        Ok(_) if number < 100 && log.contains("denied.out.test") => Finding::escaped("each is in the log"),
        Ok(others) => Finding::contained(format!("{told}; {others}")),
    })
}

async fn refusals(stage: &Stage, target: &Target) -> Outcome<Finding> {
    refused(stage, target, 20, 1000).await
}

async fn few_refusals(stage: &Stage, target: &Target) -> Outcome<Finding> {
    refused(stage, target, 4, 5).await
}
