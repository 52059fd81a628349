//! Connections to ports over the wire: what is asked, what becomes of the connection, and who answers something else.

use std::path::Path;

use sandbar_api::Code;
use sandbar_client::{Client, Error};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Answers one request with this; returns the request, and what came after it until its end.
async fn answer(socket: &Path, answer: &str) -> Outcome<(String, String)> {
    let _gone = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    let (mut stream, _) = listener.accept().await?;
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    stream.write_all(answer.as_bytes()).await?;
    let mut rest = String::new();
    if answer.starts_with("HTTP/1.1 101") {
        stream.read_to_string(&mut rest).await?;
        stream.write_all(b"after your end").await?;
    }
    Ok((String::from_utf8(head)?.to_ascii_lowercase(), rest))
}

#[tokio::test]
async fn a_connection_carries_bytes_and_ends() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let client = Client::unix(&socket)?;
    let accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: tcp\r\n\r\nfirst, ";
    let call = async {
        let mut dialled = client.dial("a/b", 8080).await?;
        dialled.write_all(b"hello").await?;
        dialled.shutdown().await?;
        let mut heard = String::new();
        dialled.read_to_string(&mut heard).await?;
        Outcome::Ok(heard)
    };
    let (answered, heard) = tokio::join!(answer(&socket, accepted), call);
    let (asked, said) = answered?;
    assert!(asked.starts_with("get /v1/sandboxes/a%2fb/ports/8080 http/1.1\r\n"), "{asked}");
    assert!(asked.contains("connection: upgrade\r\n") && asked.contains("upgrade: tcp\r\n"), "{asked}");
    assert_eq!((said.as_str(), heard?.as_str()), ("hello", "first, after your end"));
    Ok(())
}

#[tokio::test]
async fn what_is_no_connection_is_told() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let client = Client::unix(&socket)?;
    for foreign in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        let (_, dialled) = tokio::join!(answer(&socket, foreign), client.dial("a", 1));
        assert!(matches!(dialled.map(drop), Err(Error::Foreign { .. })), "{foreign}");
    }
    let problem = serde_json::to_string(&sandbar_api::Problem::new(Code::UnknownRoute, "No.", "Look."))?;
    let old =
        format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{problem}", problem.len());
    let (_, dialled) = tokio::join!(answer(&socket, &old), client.dial("a", 1));
    let error = dialled.map(drop).err().ok_or("it was taken")?;
    assert!(error.code() == Some(Code::UnknownRoute) && error.to_string().contains("too old"), "{error}");
    Ok(())
}
