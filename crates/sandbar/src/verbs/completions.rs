//! `completions`: scripts that complete verbs and options in a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Args, exit, exit::Failure, print::written};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar completions bash > ~/.local/share/bash-completion/completions/sandbar
  sandbar completions zsh > ~/.zfunc/_sandbar
  sandbar completions fish > ~/.config/fish/completions/sandbar.fish")]
pub(crate) struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn print(&self) -> Result<u8, Failure> {
        // Into memory first: the generator panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Args::command(), "sandbar", &mut script);
        written(std::io::Write::write_all(&mut std::io::stdout().lock(), &script))?;
        Ok(exit::OK)
    }
}
