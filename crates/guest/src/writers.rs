//! How much each of several writers has typed into one process, so that a repeat types nothing twice whoever else typed
//! in between. Pure, and bounded: the writer that was silent longest is forgotten first.

use crate::error::{Code, Fault};

const REMEMBERED: usize = 32;
const NAME_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Writers {
    /// The latest is last.
    known: Vec<Writer>,
}

struct Writer {
    name: String,
    taken: u64,
    /// Where this writer last announced the end of input.
    ended_at: Option<u64>,
}

/// A writer's name; none for whoever counts in the whole input.
pub(crate) fn name(name: String) -> Result<Option<String>, Fault> {
    if name.len() > NAME_MAX {
        return Err(Fault::new(Code::BadRequest, format!("A writer's name has at most {NAME_MAX} bytes.")));
    }
    Ok(Some(name).filter(|name| !name.is_empty()))
}

impl Writers {
    /// What was taken of this writer, and where it last announced the end. One that is not known has typed nothing.
    pub(crate) fn get(&self, name: &str) -> (u64, Option<u64>) {
        self.known.iter().find(|writer| writer.name == name).map_or((0, None), |writer| (writer.taken, writer.ended_at))
    }

    pub(crate) fn took(&mut self, name: &str, length: u64) {
        self.latest(name).taken += length;
    }

    pub(crate) fn ended(&mut self, name: &str, at: u64) {
        self.latest(name).ended_at = Some(at);
    }

    fn latest(&mut self, name: &str) -> &mut Writer {
        let writer = match self.known.iter().position(|writer| writer.name == name) {
            Some(index) => self.known.remove(index),
            None => Writer { name: name.to_owned(), taken: 0, ended_at: None },
        };
        if self.known.len() == REMEMBERED {
            self.known.remove(0);
        }
        self.known.push(writer);
        let last = self.known.len() - 1;
        &mut self.known[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_alone_and_the_silent_are_forgotten() {
        let mut writers = Writers::default();
        writers.took("a", 3);
        writers.took("b", 5);
        writers.took("a", 1);
        writers.ended("a", 4);
        assert_eq!((writers.get("a"), writers.get("b"), writers.get("c")), ((4, Some(4)), (5, None), (0, None)));
        for other in 0..REMEMBERED - 2 {
            writers.took(&other.to_string(), 1);
        }
        writers.took("a", 1);
        assert_eq!((writers.get("a").0, writers.get("b").0), (5, 5));
        writers.took("one more", 1);
        assert_eq!((writers.get("a").0, writers.get("b").0, writers.known.len()), (5, 0, REMEMBERED));
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(name(String::new()), Ok(None));
        assert_eq!(name("w".repeat(64)).map(|name| name.is_some()), Ok(true));
        assert_eq!(name("w".repeat(65)).map_err(|fault| fault.code), Err(Code::BadRequest));
    }
}
