//! Connecting to a guest that listens on a Unix socket in a directory.

use std::{os::fd::AsRawFd, path::PathBuf};

use hyper_util::rt::TokioIo;
use sandbar_guest::protocol::guest_client::GuestClient;
use tokio::net::UnixStream;
use tonic::transport::Endpoint;

use crate::Guest;

/// Room for the transfer of files and output; the default of 64 KiB makes every chunk wait for a round trip.
const WINDOW: u32 = 1024 * 1024;

/// Connects to `name` in `directory`. Connects again by itself when the connection breaks.
pub async fn connect(directory: PathBuf, name: &'static str) -> Result<Guest, String> {
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let directory = directory.clone();
        async move {
            // By descriptor: a home may be deeper than a socket's path may be long.
            let directory = std::fs::File::open(directory)?;
            let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
            UnixStream::connect(path).await.map(TokioIo::new)
        }
    });
    let channel = Endpoint::from_static("http://guest")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .connect_with_connector(connector)
        .await
        .map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))?;
    Ok(GuestClient::new(channel))
}
