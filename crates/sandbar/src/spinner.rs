//! A sign of life for what takes longer than a blink.

use std::{future::Future, io::IsTerminal as _, pin::pin, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

const BLINK: Duration = Duration::from_millis(150);
const TICK: Duration = Duration::from_millis(80);

/// Shows the text on standard error, if that is a terminal, while the work takes its time.
pub(crate) async fn during<T>(text: impl Into<String>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    tokio::select! {
        outcome = &mut work => return outcome,
        () = tokio::time::sleep(BLINK) => {}
    }
    let bar = ProgressBar::new_spinner().with_message(text.into());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let _clear = Clear(&bar);
    bar.enable_steady_tick(TICK);
    work.await
}

/// Also when the work is cancelled.
struct Clear<'a>(&'a ProgressBar);

impl Drop for Clear<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
