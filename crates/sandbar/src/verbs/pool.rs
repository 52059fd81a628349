//! `pool set|ls|rm`: warm sandboxes of a template, so that creating one does not wait.

use sandbar_api::{PoolList, pool::MAX_POOL};

use crate::{
    context::Context,
    exit::{self, Failure},
    spinner, table,
    text::inert,
    verbs::sandbox::each,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Pool {
    /// Keep this many sandboxes of a template warm
    ///
    /// They are made in the background, refilled when one is claimed, and fewer when memory is short. `create` with
    /// the template claims one by itself.
    #[command(after_help = "\
Examples:
  sandbar pool set default 5
  sandbar create --name agent           claims one of them")]
    Set {
        /// The template's name
        template: String,
        /// How many, at most 1000; 0 ends the pool
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_POOL)))]
        size: u32,
    },
    /// List pools
    Ls,
    /// End pools; sandboxes that were claimed stay
    Rm {
        /// The templates' names
        #[arg(required = true, value_name = "TEMPLATE")]
        templates: Vec<String>,
    },
}

pub(crate) async fn pool(verb: &Pool, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    match verb {
        Pool::Set { template, size } => {
            let pool = spinner::during("setting the pool", client.set_pool(template, *size)).await?;
            if print.json {
                return print.json(&pool).map(|()| exit::OK);
            }
            let name = inert(&pool.template);
            print.say(match pool.size {
                0 => format!("ended the pool of {name}"),
                size => format!("keeping {size} of {name} warm, {} now", pool.warm),
            });
        }
        Pool::Ls => {
            let pools = spinner::during("listing pools", client.pools()).await?;
            if print.json {
                return print.json(&PoolList { pools }).map(|()| exit::OK);
            }
            let rows = pools.into_iter().map(|pool| {
                let note = pool.reason.unwrap_or_else(|| "-".into());
                [pool.template, pool.size.to_string(), pool.warm.to_string(), note]
            });
            print.line(table::render(["TEMPLATE", "SIZE", "WARM", "NOTE"], rows))?;
        }
        Pool::Rm { templates } => {
            let mut ended = Vec::new();
            let outcome = each(templates, context, async |template| {
                spinner::during("ending the pool", client.delete_pool(template)).await?;
                if !print.json {
                    print.say(format!("ended the pool of {}", inert(template)));
                }
                ended.push(template.to_owned());
                Ok(())
            })
            .await;
            if print.json {
                print.json(&serde_json::json!({"ended": ended}))?;
            }
            return outcome;
        }
    }
    Ok(exit::OK)
}
