//! A server on a port of the sandbox that says what it is told to, whoever asks whatever.

use std::{
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use sandbar_api::bytes::decode;

use super::Got;

/// Longer than anybody waits here.
const LONG: Duration = Duration::from_secs(300);

/// `answer PORT`: the request's path is `/BASE64` of what is said and then ended; with `?on` it is said again and again
/// but for its first line, with `?hold` nothing more follows and the connection stays.
pub(super) fn answer(words: &[&str]) -> Got {
    let [port] = words else { return Err(io::Error::other("a port")) };
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    super::say("listening");
    for client in listener.incoming() {
        let client = client?;
        thread::spawn(move || said(client));
    }
    Ok("it ended".into())
}

fn said(mut client: TcpStream) -> io::Result<()> {
    client.set_write_timeout(Some(LONG))?;
    let (mut head, mut chunk) = (vec![], [0; 4096]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match client.read(&mut chunk)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default();
    let (path, how) = target.split_once('?').unwrap_or((target, ""));
    let text = path.trim_start_matches('/').replace('-', "+").replace('_', "/");
    let text = decode(&text).ok_or_else(|| io::Error::other("no base64"))?;
    client.write_all(&text)?;
    match how {
        "on" => {
            let first = text.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let again = text[first..].repeat(64 * 1024 / (text.len() - first).max(1) + 1);
            loop {
                client.write_all(&again)?;
            }
        }
        "hold" => {
            thread::sleep(LONG);
            Ok(())
        }
        _ => Ok(()),
    }
}
