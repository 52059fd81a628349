//! Migrations of both databases, from the files of `migrations/`. They are listed here by name: the library's own macro
//! would have both databases compiled a second time, for the compiler.

use std::sync::LazyLock;

use sqlx::{
    SqlStr,
    migrate::{Migration, MigrationType, Migrator},
};

/// `0002_fence.sql` and what is in it.
type File = (&'static str, &'static str);

macro_rules! files {
    ($directory:literal: $($name:literal)+) => {
        &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $directory, "/", $name)))),+]
    };
}

const SQLITE_FILES: &[File] = files! { "sqlite":
    "0001_foundation.sql"
    "0002_fence.sql"
    "0003_gate.sql"
    "0004_sessions.sql"
    "0005_answers.sql"
    "0006_webhooks.sql"
    "0007_restarts.sql"
    "0008_workspaces.sql"
    "0009_instance.sql"
    "0010_names.sql"
};
const POSTGRES_FILES: &[File] = files! { "postgres":
    "0001_present.sql"
    "0002_instance.sql"
    "0003_names.sql"
};

pub(super) static SQLITE: LazyLock<Migrator> = LazyLock::new(|| migrator(SQLITE_FILES));
pub(super) static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| migrator(POSTGRES_FILES));

/// As the library names them, so that a database that its macro migrated is known.
fn migrator(files: &[File]) -> Migrator {
    let migrations = files.iter().map(|(name, text)| {
        let (version, description) = name.trim_end_matches(".sql").split_once('_').unwrap_or((name, ""));
        let version = version.parse().unwrap_or_else(|_| unreachable!("{name} begins with no number"));
        let description = description.replace('_', " ").into();
        Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(text), false)
    });
    Migrator { migrations: migrations.collect(), ..Migrator::DEFAULT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed() -> std::io::Result<()> {
        for (directory, listed) in [("sqlite", SQLITE_FILES), ("postgres", POSTGRES_FILES)] {
            let place = format!("{}/migrations/{directory}", env!("CARGO_MANIFEST_DIR"));
            let names = std::fs::read_dir(place)?.flatten().map(|entry| entry.file_name());
            let mut there: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            there.sort();
            assert_eq!(listed.iter().map(|(name, _)| *name).collect::<Vec<_>>(), there, "{directory}");
        }
        Ok(())
    }

    /// What the macro made of `0002_fence.sql`; a checksum is of the text alone.
    #[test]
    fn a_migration_is_named_as_the_library_names_it() {
        let second = SQLITE.iter().nth(1).map(|second| (second.version, second.description.as_ref()));
        assert_eq!(second, Some((2, "fence")));
    }
}
