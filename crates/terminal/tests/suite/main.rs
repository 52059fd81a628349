//! What terminals show and ask, judged by labelled screens, by tmux and by real programs.

mod corpus;
mod pane;
mod plays;
mod prompts;
mod tmux;
