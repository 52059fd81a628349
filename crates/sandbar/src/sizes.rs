//! How much a sandbox may have: the flags that `create`, `session new` and `run` share.

use sandbar_api::{HumanSize, Limits, SetBudget};

use crate::amount;

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct Sizes {
    /// Memory of all its processes together, for example 512MiB or 8GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<HumanSize>,

    /// Processors' worth of time, for example 1.5
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<f64>,

    /// Processes and threads at once
    #[arg(long, value_name = "NUMBER")]
    processes: Option<u32>,

    /// What it may keep on the disk, its root and its workspace together
    #[arg(long, value_name = "SIZE")]
    disk: Option<HumanSize>,

    /// Dollars that its session may spend on language models, for example 5 or 0.25
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars_of)]
    usd: Option<f64>,

    /// Tokens that its session may use, input and output together, for example 250000, 100k or 2M
    #[arg(long, value_name = "TOKENS", value_parser = amount::tokens_of)]
    tokens: Option<u64>,
}

impl Sizes {
    pub(crate) fn limits(&self) -> Limits {
        let Self { memory, cpus, processes, disk, .. } = *self;
        Limits { memory, cpus, processes, disk, ..Limits::default() }
    }

    pub(crate) fn budget(&self) -> SetBudget {
        SetBudget { tokens: self.tokens, usd: self.usd, per_minute: None }
    }
}
