//! The mark in a directory of ours: whether a store promised to keep what is in it, and whose store that is.

use std::{fs, io, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use sandbar_provider::{Mark, Origin, Quarantine};
use serde::{Serialize, de::DeserializeOwned};

const KEPT: &str = "kept";
const QUARANTINED: &str = "quarantined";

/// `begun` is what its record says: whom it was made for.
pub(crate) fn read(directory: &Path, begun: Option<Origin>) -> io::Result<Option<Mark>> {
    match parse::<Quarantine>(&directory.join(QUARANTINED))? {
        Some(Ok(quarantine)) => return Ok(Some(Mark::Quarantined(quarantine))),
        // Whatever it says, somebody set it aside.
        Some(Err(error)) => {
            let since = fs::metadata(directory.join(QUARANTINED))?.modified()?.into();
            let reason = format!("its mark cannot be read: {error}");
            return Ok(Some(Mark::Quarantined(Quarantine { since, reason, origin: begun })));
        }
        None => {}
    }
    match parse::<Origin>(&directory.join(KEPT))? {
        Some(Ok(origin)) => Ok(Some(Mark::Kept(origin))),
        // Torn by a power cut: it was kept, and nobody can say by whom.
        Some(Err(_)) => Ok(None),
        None => Ok(begun.map(Mark::Begun)),
    }
}

pub(crate) fn is_quarantined(directory: &Path) -> bool {
    directory.join(QUARANTINED).exists()
}

pub(crate) fn write(directory: &Path, mark: &Mark) -> io::Result<()> {
    match mark {
        Mark::Kept(origin) => {
            put(directory, KEPT, origin)?;
            gone(&directory.join(QUARANTINED))
        }
        Mark::Begun(_) => withdraw(directory),
        Mark::Quarantined(quarantine) => {
            put(directory, QUARANTINED, quarantine)?;
            fs::File::open(directory)?.sync_all()
        }
    }
}

/// Renamed into place, so that nobody reads half of it. It is not waited for until it is on the disk: what a power cut takes
/// is written again from what the store knows.
fn put(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let draft = directory.join(format!("{name}.draft"));
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    fs::rename(draft, directory.join(name))
}

fn parse<T: DeserializeOwned>(path: &Path) -> io::Result<Option<serde_json::Result<T>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nobody promises any more to keep what is in it.
pub(crate) fn withdraw(directory: &Path) -> io::Result<()> {
    gone(&directory.join(KEPT))?;
    gone(&directory.join(QUARANTINED))
}

pub(crate) fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sandbar_api::InstanceId;

    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_a_torn_one_promises_nothing() -> io::Result<()> {
        let scratch = sandbar_test_harness::scratch()?;
        let directory = scratch.path();
        let origin = Origin { instance: InstanceId::from_parts(1, [1; 10]), epoch: 7 };
        let begun = || Some(origin.clone());
        assert_eq!(read(directory, None)?, None);
        assert_eq!(read(directory, begun())?, Some(Mark::Begun(origin.clone())));
        let kept = Mark::Kept(Origin { epoch: 8, ..origin.clone() });
        write(directory, &kept)?;
        assert_eq!(read(directory, begun())?, Some(kept.clone()));
        let since = chrono::DateTime::from_timestamp(5, 0).unwrap_or_default();
        let quarantined = Mark::Quarantined(Quarantine { since, reason: "why".into(), origin: begun() });
        write(directory, &quarantined)?;
        assert_eq!(read(directory, begun())?, Some(quarantined));
        assert!(is_quarantined(directory));
        write(directory, &kept)?;
        assert_eq!(read(directory, begun())?, Some(kept));
        fs::write(directory.join(KEPT), "")?;
        assert_eq!(read(directory, begun())?, None, "never taken for garbage");
        fs::write(directory.join(QUARANTINED), "{")?;
        assert!(matches!(read(directory, begun())?, Some(Mark::Quarantined(_))));
        write(directory, &Mark::Begun(origin.clone()))?;
        assert_eq!(read(directory, begun())?, Some(Mark::Begun(origin)));
        Ok(())
    }
}
