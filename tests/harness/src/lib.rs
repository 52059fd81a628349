//! What all test programs share: how a test says that it cannot be run here, and a `main` for programs that execute
//! themselves again as a guest or a launcher. Such a program must have no second thread, so it cannot use the built-in
//! harness. `tests/run` starts programs of both kinds alike.

mod endurance;
mod missing;
mod program;
mod scratch;

pub use endurance::endurance;
pub use missing::{is_ci, missing, not_run, partly_not_run};
pub use program::{Outcome, Test, main};
pub use scratch::scratch;
