//! Many clients of the gate at a time: connections that are opened and held, and what became of each.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Got, wire};

/// `storm N STEP…`: so many conversations side by side, by their first status.
pub(super) fn storm(words: &[&str]) -> Got {
    let (number, steps) = words.split_first().ok_or_else(|| io::Error::other("how many?"))?;
    let number: usize = number.parse().map_err(io::Error::other)?;
    let ends = thread::scope(|scope| {
        let one = || scope.spawn(|| wire::talk(steps));
        let all: Vec<_> = (0..number).map(|_| one()).collect();
        all.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))).collect::<Vec<_>>()
    });
    Ok(counted(ends.iter().map(|end| match end {
        Ok(heard) => status(heard.as_bytes()).unwrap_or("nothing").to_owned(),
        Err(error) => error.to_string(),
    })))
}

/// `crowd N MS BASE64 [at:ADDRESS] [within:S]`: opens so many connections one after the other until one takes longer, sends the
/// text on each (`{}` is its number), holds them for that long and tells how many were answered with what.
pub(super) fn crowd(words: &[&str]) -> Got {
    let [number, hold, text, more @ ..] = words else { return Err(io::Error::other("number, time and text")) };
    let place = more.iter().find_map(|word| word.strip_prefix("at:")).unwrap_or(wire::GATE);
    let within = more.iter().find_map(|word| word.strip_prefix("within:")).unwrap_or("3");
    let within = Duration::from_secs(within.parse().map_err(io::Error::other)?);
    let number: usize = number.parse().map_err(io::Error::other)?;
    let hold = Duration::from_millis(hold.parse().map_err(io::Error::other)?);
    let text = sandbar_api::bytes::decode(text).ok_or_else(|| io::Error::other("no base64"))?;
    let text = String::from_utf8_lossy(&text);
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let place = place.parse().map_err(io::Error::other)?;
    let (mut held, mut stopped) = (vec![], String::new());
    for index in 0..number {
        let opened = TcpStream::connect_timeout(&place, within).and_then(|mut stream| {
            stream.set_nonblocking(true)?;
            stream.write_all(text.replace("{}", &index.to_string()).as_bytes())?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => held.push((stream, vec![], false)),
            Err(error) => {
                stopped = format!(", then {error}");
                break;
            }
        }
    }
    super::say(&format!("opened {}{stopped}", held.len()));
    let deadline = Instant::now() + hold;
    while Instant::now() < deadline && held.iter().any(|(.., done)| !done) {
        for (stream, heard, done) in held.iter_mut().filter(|(.., done)| !done) {
            let mut chunk = [0; 512];
            match stream.read(&mut chunk) {
                Ok(0) => *done = true,
                Ok(count) => heard.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => *done = true,
            }
            *done |= status(heard).is_some();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let ends = held.iter().map(|(_, heard, done)| match (status(heard), done) {
        (Some(status), _) => status.to_owned(),
        (None, true) => "closed".to_owned(),
        (None, false) => "waiting".to_owned(),
    });
    Ok(format!("opened {}{stopped}: {}", held.len(), counted(ends)))
}

fn status(heard: &[u8]) -> Option<&str> {
    std::str::from_utf8(heard.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()
}

fn counted(ends: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::<String, u32>::new();
    for end in ends {
        *counts.entry(end).or_default() += 1;
    }
    counts.iter().map(|(end, count)| format!("{end} x {count}")).collect::<Vec<_>>().join(", ")
}
