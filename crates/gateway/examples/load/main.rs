//! What `bench/gate.py` puts on both ends of the gate: an origin, and clients that time it directly, through a proxy, or
//! through the gate they sit behind. Clients are threads that block: nothing of theirs comes between the clock and the wire.

mod calls;
mod client;
mod origin;
mod requests;
mod spread;

use std::{collections::HashMap, error::Error, io::Write as _, time::Duration};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "load origin DIR | fresh | kept | download | flood | rate | streams, and NAME=VALUE…";

/// What comes after the verb: `seconds=2 dial=127.0.0.1:80`.
struct Words(HashMap<String, String>);

impl Words {
    fn text(&self, name: &str) -> Outcome<&str> {
        Ok(self.0.get(name).ok_or_else(|| format!("{name}=… is missing"))?)
    }

    fn number(&self, name: &str) -> Outcome<u64> {
        Ok(self.text(name)?.parse().map_err(|error| format!("{name}: {error}"))?)
    }

    fn seconds(&self) -> Outcome<Duration> {
        Ok(Duration::from_millis(self.number("ms")?))
    }
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let verb = arguments.next().ok_or(USAGE)?;
    if verb == "origin" {
        return origin::serve(&arguments.next().ok_or(USAGE)?);
    }
    let split = |word: String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let words = Words(arguments.map(split).collect::<Option<_>>().ok_or(USAGE)?);
    let target = client::Target::read(&words)?;
    let told = match &*verb {
        "fresh" => requests::fresh(&target, words.seconds()?)?,
        "kept" => requests::kept(&target, words.seconds()?)?,
        "download" => requests::download(&target, words.seconds()?)?,
        "flood" => requests::flood(&target, words.number("count")?, words.number("at_once")?)?,
        "rate" => calls::rate(&target, words.number("rate")?, words.seconds()?)?,
        "streams" => calls::streams(&target, words.number("streams")?, words.number("rate")?, words.seconds()?)?,
        _ => return Err(USAGE.into()),
    };
    writeln!(std::io::stdout(), "{told}")?;
    Ok(())
}
