//! Terminals looked at without attaching: `screen`, `transcript`.

use sandbar_api::{Process, ScreenFormat};
use sandbar_client::{Client, TranscriptQuery};

use crate::{
    context::Context,
    exit::{self, Failure},
    print::written,
    text::inert,
};

/// Which terminal of which sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The sandbox's id or name
    pub sandbox: String,

    /// The process; by default the terminal started last
    pub process: Option<String>,
}

impl Which {
    pub(crate) async fn process(&self, client: &Client) -> Result<String, Failure> {
        let sandbox = &self.sandbox;
        match &self.process {
            Some(process) => Ok(process.clone()),
            None => newest(client.processes(sandbox).await?).ok_or_else(|| {
                Failure::new(exit::NOT_FOUND, format!("no terminal was started in {sandbox} yet"))
                    .hint(format!("Start one with `sandbar exec -t {sandbox} -- COMMAND`."))
            }),
        }
    }
}

fn newest(processes: Vec<Process>) -> Option<String> {
    let terminals = processes.into_iter().filter(|process| process.terminal);
    let newest = terminals.max_by(|a, b| (a.started_at, &a.id).cmp(&(b.started_at, &b.id)));
    newest.map(|process| process.id.to_string())
}

/// Show what a terminal shows
///
/// Without attaching to it: nobody notices. Of a process that has ended, what it showed last.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar screen agent                of the terminal started last
  sandbar screen --ansi agent         with its colours
  sandbar screen --json agent         with cursor, size, title")]
pub(crate) struct Screen {
    /// With colours
    #[arg(long)]
    ansi: bool,

    #[command(flatten)]
    which: Which,
}

/// Show what a terminal has shown, as lines of text
///
/// Escape sequences and what was overwritten are not in it. With --json each line comes with its offset and time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar transcript agent
  sandbar transcript agent --grep error -i")]
pub(crate) struct Transcript {
    /// Only lines that contain this
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,

    /// Capitals and small letters alike
    #[arg(short, long, requires = "grep")]
    ignore_case: bool,

    /// The first byte of output wanted; by default the first that is kept
    #[arg(long, value_name = "OFFSET")]
    from: Option<u64>,

    /// The byte of output to stop before; by default the end
    #[arg(long, value_name = "OFFSET")]
    to: Option<u64>,

    #[command(flatten)]
    which: Which,
}

pub(crate) async fn screen(args: &Screen, context: &Context) -> Result<u8, Failure> {
    let (client, print) = (context.client()?, context.print);
    let process = args.which.process(&client).await?;
    if print.json {
        return print.json(&client.screen(&args.which.sandbox, &process).await?).map(|()| exit::OK);
    }
    let format = if args.ansi { ScreenFormat::Ansi } else { ScreenFormat::Text };
    let text = client.screen_text(&args.which.sandbox, &process, format).await?;
    let text = text.trim_end_matches('\n');
    // Colours are the server's rendering; text has no business with controls.
    let lines = text.lines().map(|line| if args.ansi { line.into() } else { inert(line) });
    lines.into_iter().try_for_each(|line| print.line(line))?;
    Ok(exit::OK)
}

pub(crate) async fn transcript(args: &Transcript, context: &Context) -> Result<u8, Failure> {
    let (client, print) = (context.client()?, context.print);
    let process = args.which.process(&client).await?;
    let mut query = TranscriptQuery {
        from: args.from,
        to: args.to,
        grep: args.grep.clone(),
        ignore_case: args.ignore_case,
        limit: None,
    };
    loop {
        let part = client.transcript(&args.which.sandbox, &process, &query).await?;
        for line in &part.lines {
            match print.json {
                true => print.json(line)?,
                false => print.line(inert(&line.text))?,
            }
        }
        if !part.more {
            return written(std::io::Write::flush(&mut std::io::stdout().lock())).map(|()| exit::OK);
        }
        query.from = Some(part.next);
    }
}
