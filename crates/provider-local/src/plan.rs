//! What a new sandbox will be: whether this host and this combination can do what its spec asks, before anything is made.

use std::path::{Component, Path};

use sandbar_api::{Layer, Requirement, Root, User, WorkspaceSource};
use sandbar_provider::{Error, Spec};

use crate::{
    directory::{self, Data, Record},
    disk, layer,
    local::Local,
};

impl Local {
    /// A directory of the host may be bound if it does not show, or lie in, Sandbar's own data.
    pub(crate) fn check_workspace(&self, workspace: &WorkspaceSource) -> Result<WorkspaceSource, Error> {
        let WorkspaceSource::Bind { path } = workspace else { return Ok(workspace.clone()) };
        let bad =
            |cause: String, fix: &str| Error::BadSpec { what: format!("workspace {path}"), cause, fix: fix.into() };
        let real = Path::new(path)
            .canonicalize()
            .map_err(|error| bad(error.to_string(), "Bind a directory that exists on the server's host."))?;
        if !real.is_dir() {
            return Err(bad("it is not a directory".into(), "Bind a directory."));
        }
        if let Some(cause) = self.overlaps_home(&real) {
            return Err(bad(cause, "Bind a directory that neither contains the home nor lies in it."));
        }
        match real.into_os_string().into_string() {
            Ok(path) => Ok(WorkspaceSource::Bind { path }),
            Err(_) => Err(bad("its path is not UTF-8".into(), "Rename it, or bind a link's target that is.")),
        }
    }

    /// The same for skills, which are found by their path as it is written.
    fn check_skills(&self, path: &str) -> Result<(), Error> {
        let written = Path::new(path);
        let cause = if !written.is_absolute() || written.components().any(|part| part == Component::ParentDir) {
            Some("its path is not absolute, or has a `..` in it".to_owned())
        } else {
            self.overlaps_home(written)
        };
        let what = || format!("the directory of skills {path}");
        let fix = "Name a directory in the template that neither contains Sandbar's home nor lies in it.";
        cause.map_or(Ok(()), |cause| Err(Error::BadSpec { what: what(), cause, fix: fix.into() }))
    }

    fn overlaps_home(&self, path: &Path) -> Option<String> {
        let home = self.shared.directory.parent().unwrap_or(&self.shared.directory);
        let overlaps = home.starts_with(path) || path.starts_with(home);
        overlaps.then(|| format!("it overlaps Sandbar's home {}", home.display()))
    }

    /// What this host, or this combination, cannot do is refused before anything is made.
    pub(crate) fn check(&self, spec: &Spec) -> Result<(), Error> {
        if let Some(path) = &spec.skills {
            self.check_skills(path)?;
        }
        let ranges = self.shared.register.has_ranges();
        let unprivileged = |layer: &'static str, cause: &str| {
            let (cause, fix) = (cause.to_owned(), "Run `sandbar up` as root.".to_owned());
            Err(Error::NotEnforceable { layer, cause, fix })
        };
        if !ranges && spec.requirement(Layer::Users) == Requirement::Required {
            return unprivileged("uid separation", "an ordinary user has one uid, shared by all its sandboxes");
        }
        if !ranges && spec.user == User::Root {
            return unprivileged(
                "root inside",
                "an ordinary user has no uids that files of the host's could belong to",
            );
        }
        if spec.limits.disk.is_some() {
            if !ranges {
                return Err(disk::refused(
                    "an ordinary user cannot mount a disk image".into(),
                    "Run `sandbar up` as root.",
                ));
            }
            disk::can_make()?;
        }
        let read_only = spec.requirement(Layer::ReadOnlyRoot) != Requirement::Off;
        if read_only && spec.user == User::Root && spec.root == Root::Host {
            return Err(Error::NotEnforceable {
                layer: "read-only root",
                cause: "root inside has a /usr of its own to write to".into(),
                fix: "Ask for the user `agent`, or leave read_only_root off.".into(),
            });
        }
        let no_exec = spec.requirement(Layer::NoExec) != Requirement::Off;
        if no_exec && (spec.user == User::Root || matches!(spec.root, Root::Image { .. }) && !read_only) {
            return Err(Error::NotEnforceable {
                layer: "no execution outside the workspace",
                cause: "its programs are where the sandbox may write".into(),
                fix: "Ask for read_only_root as well, and for the user `agent`.".into(),
            });
        }
        Ok(())
    }

    /// What a new sandbox stands on, and how its own files are held.
    pub(crate) fn plan(&self, spec: &Spec, path: &Path) -> Result<Record, Error> {
        let shared = &self.shared;
        let (lower, layers) = match &spec.from {
            None => (directory::lower(&shared.base, &spec.root)?, Vec::new()),
            Some(from) => {
                let layer = shared.layers.usable(from)?;
                let layers: Vec<_> = [from.clone()].into_iter().chain(layer.below).collect();
                if layers.len() > layer::DEEPEST {
                    return Err(Error::BadSpec {
                        what: format!("snapshot {from}"),
                        cause: format!("it stands on more than {} others", layer::DEEPEST - 1),
                        fix: "Copy the files into a new sandbox.".into(),
                    });
                }
                (layer.lower, layers)
            }
        };
        let data = match spec.limits.disk {
            Some(_) => Data::Image,
            None if shared.subvolumes => Data::Subvolume,
            None => Data::Plain,
        };
        let spec = Some(Box::new(spec.clone()));
        Ok(Record { uids: shared.register.take(path)?, lower, data, layers, spec })
    }
}
