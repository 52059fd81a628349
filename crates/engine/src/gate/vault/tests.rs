//! What is sealed, and the key's file.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use sandbar_api::SandboxId;

use super::{KEY_FILE, Vault};
use crate::OpenError;

type Tested = Result<(), Box<dyn std::error::Error>>;

fn refused(home: &Path) -> String {
    match Vault::open(home) {
        Err(error @ OpenError::SecretKey { .. }) => {
            assert!(error.fix().contains("chmod 600"), "{}", error.fix());
            error.to_string()
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn what_is_sealed_opens_with_the_same_key_in_the_same_place_only() -> Tested {
    let (home, other) = (sandbar_test_harness::scratch()?, sandbar_test_harness::scratch()?);
    let vault = Vault::open(home.path())?;
    let sealed = vault.seal("secret:A", b"hunter2")?;
    assert!(!sealed.windows(7).any(|window| window == b"hunter2"));
    assert_ne!(sealed, vault.seal("secret:A", b"hunter2")?, "the same twice is not seen to be the same");
    assert_eq!(vault.unseal("secret:A", &sealed)?.as_slice(), b"hunter2");
    assert_eq!(Vault::open(home.path())?.unseal("secret:A", &sealed)?.as_slice(), b"hunter2", "after a restart");
    assert!(vault.unseal("secret:B", &sealed).is_err(), "moved to another row");
    assert!(Vault::open(other.path())?.unseal("secret:A", &sealed).is_err(), "another key");
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(vault.unseal("secret:A", &changed).is_err(), "changed at {at}");
        assert!(vault.unseal("secret:A", &sealed[..at]).is_err(), "cut at {at}");
    }
    let empty = vault.seal("secret:A", b"")?;
    assert_eq!(vault.unseal("secret:A", &empty)?.as_slice(), b"");
    Ok(())
}

#[test]
fn the_key_is_its_owners_alone() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    Vault::open(home.path())?;
    let path = home.path().join(KEY_FILE);
    let found = fs::metadata(&path)?;
    assert_eq!((found.mode() & 0o777, found.len()), (0o600, 32));
    assert_eq!(fs::read_dir(home.path())?.count(), 1, "nothing is left of making it");
    for mode in [0o640, 0o604, 0o660, 0o620] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let told = refused(home.path());
        assert!(told.contains(&format!("mode {mode:04o}")), "{told}");
    }
    Ok(())
}

#[test]
fn what_is_no_key_is_refused_and_left_as_it_is() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let path = home.path().join(KEY_FILE);
    for length in [0, 31, 33] {
        fs::write(&path, vec![7; length])?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        assert!(refused(home.path()).contains(&format!("{length} bytes")));
        assert_eq!(fs::read(&path)?, vec![7; length]);
    }
    let elsewhere = home.path().join("elsewhere");
    fs::rename(&path, &elsewhere)?;
    symlink(&elsewhere, &path)?;
    assert!(refused(home.path()).contains("symbolic link"));
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    assert!(refused(home.path()).contains("no file"));
    Ok(())
}

#[test]
fn half_a_key_of_a_crash_is_not_taken_for_one() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    fs::write(home.path().join("secret.key.new"), "half")?;
    let sealed = Vault::open(home.path())?.seal("c", b"x")?;
    assert_eq!(Vault::open(home.path())?.unseal("c", &sealed)?.as_slice(), b"x");
    Ok(())
}

#[test]
fn placeholders_are_words_of_their_own() -> Tested {
    let (home, other) = (sandbar_test_harness::scratch()?, sandbar_test_harness::scratch()?);
    let vault = Vault::open(home.path())?;
    let (one, two) = (SandboxId::from_parts(1, [1; 10]), SandboxId::from_parts(2, [1; 10]));
    let word = vault.placeholder(&one, "TOKEN");
    assert_eq!(word.len(), 44);
    assert!(word.starts_with("sbp_"));
    assert!(word[4..].bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{word}");
    assert_eq!(Vault::open(home.path())?.placeholder(&one, "TOKEN"), word, "it stays over restarts");
    let others = [
        vault.placeholder(&two, "TOKEN"),
        vault.placeholder(&one, "TOKEN2"),
        Vault::open(other.path())?.placeholder(&one, "TOKEN"),
    ];
    assert!(!others.contains(&word), "{others:?}");
    Ok(())
}

#[test]
fn a_key_of_others_is_taken_once_and_never_replaces_one() -> Tested {
    let (home, elsewhere) = (sandbar_test_harness::scratch()?, sandbar_test_harness::scratch()?);
    let (file, link) = (elsewhere.path().join("data"), elsewhere.path().join("key"));
    fs::write(&file, [7; 32])?;
    symlink(&file, &link)?;
    Vault::adopt(home.path(), &link)?;
    assert_eq!(fs::read(home.path().join(KEY_FILE))?, [7; 32]);
    assert_eq!(fs::metadata(home.path().join(KEY_FILE))?.mode() & 0o777, 0o600);
    Vault::adopt(home.path(), &link)?;
    for (bytes, word) in [(&[8; 32][..], "is not the key in"), (&[7; 31], "31 bytes"), (&[], "0 bytes")] {
        fs::write(&file, bytes)?;
        let Err(refused) = Vault::adopt(home.path(), &link) else { panic!("{bytes:?} was taken") };
        assert!(refused.to_string().contains(word), "{refused}");
    }
    assert_eq!(fs::read(home.path().join(KEY_FILE))?, [7; 32]);
    Ok(())
}
