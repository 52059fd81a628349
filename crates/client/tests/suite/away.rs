//! A server that is restarted: who waits for it says so, once.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sandbar_client::{Client, Patience};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Patience =
    Patience { first: Duration::from_millis(2), longest: Duration::from_millis(4), total: Duration::from_secs(300) };

/// Answers one request and is gone.
async fn answer_one(socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let (mut stream, _) = listener.accept().await?;
    let mut head = [0; 1024];
    let _ = stream.read(&mut head).await?;
    let body = r#"{"templates":[]}"#;
    let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).await?;
    std::fs::remove_file(socket)
}

#[tokio::test]
async fn each_absence_is_told_once() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let told = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&told);
    let client =
        Client::unix(&socket)?.with_patience(PATIENCE).on_away(move || _ = count.fetch_add(1, Ordering::Relaxed));
    assert!(client.templates().await.is_err(), "one that never answered is not waited for");
    for absences in 0..3 {
        let server = async {
            // The first time it must be there at once, later not before its absence was told.
            while told.load(Ordering::Relaxed) < absences {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            answer_one(&socket).await
        };
        let ask = async {
            while absences == 0 && !socket.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            client.templates().await
        };
        let both = async { tokio::join!(server, ask) };
        let (served, asked) = tokio::time::timeout(Duration::from_secs(300), both).await?;
        served?;
        asked?;
        assert_eq!(told.load(Ordering::Relaxed), absences);
    }
    Ok(())
}
