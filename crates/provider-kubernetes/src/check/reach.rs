//! What runs in a pod of the check, as a hidden verb of the binary: it listens, tries to reach others, and tells what happened,
//! a line of JSON each, on its standard output. It concludes nothing.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::objects::GUEST_PORT;

/// The addresses to try, with commas in between.
pub const TARGETS: &str = "SANDBAR_PROBE_TARGETS";
/// Long enough for a policy that takes hold late to be seen to, and for a cluster that is slow to let a new pod through at
/// all. The same for every address: what is not reached in it tells something only of whoever had as long.
const WINDOW: Duration = Duration::from_secs(10);
const ATTEMPT: Duration = Duration::from_secs(1);
const GAP: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// What the kernel calls itself.
    Kernel(String),
    Tried(Tried),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub target: SocketAddr,
    pub attempts: u32,
    pub reached: u32,
    /// Whether the last attempt got through.
    pub last_reached: bool,
    /// When the last attempt that got through did, from the start.
    pub last_reached_ms: Option<u64>,
    /// Why the last one that did not, did not.
    pub refusal: Option<String>,
}

/// Never returns by itself once everything was told: others may still try to reach it.
pub async fn main(targets: &str, tell: impl Fn(String)) -> io::Result<()> {
    let tell = |said: &Said| serde_json::to_string(said).map(&tell).map_err(io::Error::other);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, GUEST_PORT)).await?;
    let serving = tokio::spawn(async move {
        // To have been accepted is all that is looked for.
        while listener.accept().await.is_ok() {}
    });
    tell(&Said::Kernel(std::fs::read_to_string("/proc/version")?.trim().to_owned()))?;
    let targets: Vec<SocketAddr> = targets
        .split(',')
        .filter(|target| !target.is_empty())
        .map(|target| target.parse().map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    for tried in join_all(targets.into_iter().map(|target| attempts(target, WINDOW))).await {
        tell(&Said::Tried(tried))?;
    }
    tell(&Said::Done)?;
    serving.await.map_err(io::Error::other)
}

async fn attempts(target: SocketAddr, window: Duration) -> Tried {
    let begun = Instant::now();
    let mut tried =
        Tried { target, attempts: 0, reached: 0, last_reached: false, last_reached_ms: None, refusal: None };
    while begun.elapsed() < window {
        let outcome = match timeout(ATTEMPT, TcpStream::connect(target)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("timed out".to_owned()),
        };
        tried.attempts += 1;
        tried.last_reached = outcome.is_ok();
        match outcome {
            Ok(()) => {
                tried.reached += 1;
                tried.last_reached_ms = u64::try_from(begun.elapsed().as_millis()).ok();
            }
            Err(refusal) => tried.refusal = Some(refusal),
        }
        sleep(GAP).await;
    }
    tried
}

/// What has been told so far; lines that are not ours are passed over.
pub(super) fn read(log: &str) -> Vec<Said> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn what_listens_is_reached_and_what_does_not_is_not() -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let open = listener.local_addr()?;
        let tried = attempts(open, SHORT).await;
        assert!(tried.attempts > 0 && tried.reached == tried.attempts && tried.last_reached, "{tried:?}");
        drop(listener);
        let tried = attempts(open, SHORT).await;
        assert!(tried.attempts > 0 && tried.reached == 0 && !tried.last_reached, "{tried:?}");
        assert!(tried.refusal.is_some(), "{tried:?}");
        Ok(())
    }

    #[test]
    fn what_is_told_is_read_again() -> serde_json::Result<()> {
        let said = [Said::Kernel("Linux version 6.1".into()), Said::Done];
        let log = said.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?.join("\nnoise\n");
        assert_eq!(read(&log), said);
        Ok(())
    }
}
