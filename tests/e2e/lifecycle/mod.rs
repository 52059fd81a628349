//! Random lives of sandboxes on a real server and a real kernel, against a model: created, claimed, worked in, paused,
//! kept, forked, stopped, deleted, several at once, while the server is killed again and again. What is there has to be
//! what the model has, after every round; and nothing may be left of what is gone.
//!
//! A failure prints its seed: `SANDBAR_SEED=… cargo test -p sandbar --test e2e lifecycle` runs the same rounds again, and
//! `SANDBAR_STEPS=…` more of them, or fewer.

mod act;
mod choice;
mod leaks;
mod look;
mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime},
};

use act::{Answer, act};
use choice::Chooser;
use leaks::Traces;
use model::{Model, Step};
use sandbar_client::Client;

use crate::support::{Dice, Outcome, Server, expect_gapless};

const NAME: &str = "random_lives_go_as_the_model_says_and_leave_nothing";
const ROUNDS: u64 = 40;
/// Of so many rounds, the server is killed in one.
const KILLED: u64 = 7;

const PLAIN: &str = "default";
const WARM: (&str, &str) = ("warm", "description = \"kept warm\"\n");
const BOUNDED: (&str, &str) = ("bounded", "[limits]\nmemory = \"256MiB\"\nprocesses = 100\ndisk = \"16MiB\"\n");

/// How often a verb was done, and how often refused or without effect.
type Tally = BTreeMap<&'static str, (u32, u32)>;

fn number(variable: &str) -> Outcome<Option<u64>> {
    std::env::var(variable).ok().map(|text| Ok(text.parse()?)).transpose()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_lives_go_as_the_model_says_and_leave_nothing() -> Outcome {
    let given = number("SANDBAR_SEED")?;
    let rounds = number("SANDBAR_STEPS")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros() as u64;
    let (mut tally, mut freezes) = (Tally::new(), true);
    for seed in (0..if given.is_some() { 1 } else { sandbar_test_harness::endurance(4, 10) })
        .map(|more| given.unwrap_or(now % 1_000_000_000) + more)
    {
        let begun = Instant::now();
        let mut life = Life::begin(seed).await?;
        if let Err(error) = life.run(rounds.unwrap_or(ROUNDS)).await {
            eprintln!("the server's log:\n{}\nthe rounds:\n{}", life.server.log_text(), life.story.join("\n"));
            return Err(format!("{error}; SANDBAR_SEED={seed} runs it again").into());
        }
        freezes &= life.model.freezes;
        for (verb, (done, refused)) in life.tally {
            let all = tally.entry(verb).or_default();
            *all = (all.0 + done, all.1 + refused);
        }
        eprintln!("seed {seed}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    eprintln!("done and refused: {tally:?}");
    if given.is_none() && rounds.is_none() {
        // What this host refuses is said above.
        let missed = tally.iter().filter(|(verb, (done, _))| *done == 0 && (freezes || **verb != "pause"));
        let missed: Vec<_> = missed.map(|(verb, _)| verb).collect();
        assert!(missed.is_empty(), "never done: {missed:?}");
    }
    Ok(())
}

struct Life {
    server: Server,
    client: Client,
    model: Model,
    chooser: Chooser,
    traces: Traces,
    story: Vec<String>,
    tally: Tally,
}

impl Life {
    async fn begin(seed: u64) -> Outcome<Self> {
        let server = Server::start()?;
        let templates = server.home.path().join("templates");
        let client = server.client()?;
        let works = works(&client).await?;
        let mut offered = vec![PLAIN, WARM.0];
        std::fs::write(templates.join("warm.toml"), WARM.1)?;
        if ["memory limit", "process limit", "disk limit"].iter().all(|limit| works.contains(*limit)) {
            std::fs::write(templates.join("bounded.toml"), BOUNDED.1)?;
            offered.push(BOUNDED.0);
        } else {
            sandbar_test_harness::partly_not_run(NAME, "sandboxes with limits: this host cannot enforce them");
        }
        let model = Model { freezes: works.contains("freezing"), ..Model::default() };
        if !model.freezes {
            sandbar_test_harness::partly_not_run(NAME, "pauses, and snapshots of what runs: this host cannot freeze");
        }
        let traces = Traces::begin(&server)?;
        let chooser = Chooser::new(Dice(seed), offered);
        Ok(Self { server, client, model, chooser, traces, story: vec![], tally: Tally::new() })
    }

    async fn run(&mut self, rounds: u64) -> Outcome {
        for _ in 0..rounds {
            let steps = self.chooser.round(&self.model);
            let kill = (self.chooser.dice.roll(KILLED) == 0).then(|| self.moment());
            self.story.push(match kill {
                Some(after) => format!("{steps:?}, killed after {after:?}"),
                None => format!("{steps:?}"),
            });
            self.round(steps, kill).await?;
            look::agree(&self.client, &self.model, self.server.home.path()).await?;
        }
        self.end().await
    }

    /// When in the course of a verb the server is killed: all of them take milliseconds.
    fn moment(&mut self) -> Duration {
        let most = [1, 4_000, 20_000, 80_000][self.chooser.dice.roll(4) as usize];
        Duration::from_micros(self.chooser.dice.roll(most))
    }

    async fn round(&mut self, steps: Vec<Step>, kill: Option<Duration>) -> Outcome {
        if kill.is_some() {
            self.count_claims().await?;
        }
        let client = self.server.impatient()?;
        let asked = futures_util::future::join_all(steps.iter().map(|step| act(&client, step)));
        let killed = async {
            if let Some(after) = kill {
                tokio::time::sleep(after).await;
                self.traces.note(&self.server);
                self.server.kill()?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let (answers, killed) = tokio::join!(asked, killed);
        killed?;
        let answers = answers.into_iter().collect::<Outcome<Vec<_>>>()?;
        if kill.is_some() {
            self.server.restart()?;
            self.client = self.server.client()?;
        }
        for (step, answer) in steps.iter().zip(&answers) {
            let done = match answer {
                Answer::None(_) if kill.is_some() => look::settle(&self.client, &mut self.model, step).await?,
                answer => look::judge(&mut self.model, step, answer)?,
            };
            let (did, refused) = self.tally.entry(step.verb()).or_default();
            *(if done { did } else { refused }) += 1;
        }
        if kill.is_some() {
            self.tally.entry("kill").or_default().0 += 1;
            look::read_all(&self.client, &self.model).await?;
        }
        Ok(())
    }

    /// What a server counted has to be asked before it is killed.
    async fn count_claims(&mut self) -> Outcome {
        let metrics = self.client.metrics().await?;
        let count = metrics.lines().find_map(|line| line.strip_prefix("sandbar_claims_total ")?.parse::<u32>().ok());
        self.tally.entry("found a warm one").or_default().0 += count.ok_or("claims are not counted")?;
        Ok(())
    }

    /// Deletes everything, in any order, and looks for what is left.
    async fn end(&mut self) -> Outcome {
        look::read_all(&self.client, &self.model).await?;
        let mut last: Vec<Step> = self.model.sandboxes.keys().cloned().map(|name| Step::Delete { name }).collect();
        last.extend(self.model.snapshots.keys().cloned().map(|snapshot| Step::DeleteSnapshot { snapshot }));
        last.extend(self.model.pools.keys().map(|template| Step::SetPool { template, size: 0 }));
        while !last.is_empty() {
            let step = last.swap_remove(self.chooser.dice.roll(last.len() as u64) as usize);
            self.story.push(format!("{step:?}"));
            self.round(vec![step], None).await?;
        }
        look::agree(&self.client, &self.model, self.server.home.path()).await?;
        self.count_claims().await?;
        let events = expect_gapless(&self.client).await?;
        assert!(events >= self.story.len() as u64 / 2, "hardly any events: {events}");
        self.traces.expect_none_but_the_server(&self.server).await?;
        self.traces.note(&self.server);
        self.server.kill()?;
        self.traces.expect_none(&self.server).await
    }
}

/// What the host's report says works.
async fn works(client: &Client) -> Outcome<BTreeSet<String>> {
    let reports = client.host().await?;
    let findings = reports.iter().filter_map(|report| report["findings"].as_array()).flatten();
    let working = findings.filter(|found| found["works"] == true);
    Ok(working.filter_map(|found| found["layer"].as_str().map(str::to_owned)).collect())
}
