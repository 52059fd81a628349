//! `profile ls|show`: the isolation profiles that templates choose from. They are part of this program: no server.

use sandbar_api::{Profile as Known, profile::ProfileList};

use crate::{
    context::Context,
    exit::{self, Failure},
    table,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Profile {
    /// List profiles
    Ls,
    /// Show what a profile asks of each layer, and why
    Show {
        /// Its name
        name: String,
    },
}

pub(crate) fn profile(verb: &Profile, context: &Context) -> Result<u8, Failure> {
    let print = context.print;
    match verb {
        Profile::Ls => {
            let profiles: Vec<_> = Known::names().filter_map(Known::named).collect();
            if print.json {
                return print.json(&ProfileList { profiles }).map(|()| exit::OK);
            }
            let rows = profiles.into_iter().map(|profile| [profile.name, profile.description]);
            print.line(table::render(["NAME", "DESCRIPTION"], rows))?;
        }
        Profile::Show { name } => {
            let (Some(profile), Some(text)) = (Known::named(name), Known::text(name)) else {
                let known = Known::names().collect::<Vec<_>>().join(", ");
                return Err(Failure::new(exit::NOT_FOUND, format!("there is no profile `{name}`"))
                    .hint(format!("There are {known}.")));
            };
            if print.json {
                return print.json(&profile).map(|()| exit::OK);
            }
            print.line(text.trim_end())?;
        }
    }
    Ok(exit::OK)
}
