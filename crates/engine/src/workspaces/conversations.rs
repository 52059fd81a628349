//! Conversations: sessions that are begun before they have a sandbox, and found by the id their user gave them.

use std::collections::BTreeMap;

use sandbar_api::{Code, Problem, Session, SessionId, SetBudget, check, workspace};

use super::config;
use crate::{
    Caller, Engine, Inner, clock, ids, problem,
    store::{
        self,
        sessions::{Begun, External, NewSession, SessionMarks, SessionRow},
    },
};

/// Whose it is, and what they call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationId {
    pub user: String,
    /// Absent of one that is yet to get one, which is then the session's own.
    pub id: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct NewConversation {
    /// Unique among sessions that are not deleted.
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Whose configuration its workspaces are made by; when absent that of whoever it was begun for, else nobody's own.
    pub agent: Option<String>,
    pub id: Option<ConversationId>,
    /// Its workspace is asked for at once: where none could be made, it is not begun either.
    pub provides: bool,
}

/// Of those that nobody named.
const AGENT: &str = "default";

impl Engine {
    /// The same for whoever begins it again: by its user's id, or by its name. `name_taken` if that is another agent's.
    pub async fn begin_conversation(&self, caller: &Caller, new: NewConversation) -> Result<Session, Problem> {
        if let Some(name) = &new.name {
            check::session_name(name)?;
        }
        check::labels(&new.labels)?;
        new.agent.as_deref().map_or(Ok(()), workspace::check_agent)?;
        if self.inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let created_at = clock::now();
        let id = ids::session(created_at)?;
        let external = new.id.map(|external| of_user(external, &id)).transpose()?;
        let asked = new.agent;
        // Most of those who ask find it, and need not wait for their turn to write.
        if let Some(known) = self.inner.begun(new.name.as_deref(), external.as_ref()).await? {
            return self.inner.show(same_agent(known, asked.as_deref())?).await;
        }
        let agent = asked.clone().unwrap_or_else(|| AGENT.to_owned());
        if new.provides {
            self.inner.usable(&agent).await?;
        }
        let marks = SessionMarks { name: new.name.clone(), labels: new.labels };
        let limits = self.inner.budget_of(&agent).await?;
        let owner = caller.owner.clone();
        let row = NewSession { id, owner, marks, agent, limits, external: external.clone(), created_at };
        let row = match self.inner.store.create_session(row).await {
            Ok(Begun::New(row)) => row,
            Ok(Begun::Known(row)) => same_agent(row, asked.as_deref())?,
            Err(error @ store::Error::SessionNameTaken(_)) => {
                let known = self.inner.begun(new.name.as_deref(), external.as_ref()).await?;
                same_agent(known.ok_or(error)?, asked.as_deref())?
            }
            Err(error) => return Err(error.into()),
        };
        self.inner.show(row).await
    }

    /// A user's own: by the id they gave it, or by the session's. Also one that was deleted, until it is pruned.
    pub async fn conversation(&self, user: &str, id: &str) -> Result<Session, Problem> {
        let external = External { user: user.to_owned(), id: id.to_owned() };
        let row = match (self.inner.store.conversation(&external).await?, id.parse::<SessionId>()) {
            (Some(row), _) => Some(row),
            (None, Ok(id)) => self.inner.store.session(&id).await?.filter(|row| belongs(row, user)),
            (None, Err(_)) => None,
        };
        match row {
            Some(row) => self.inner.show(row).await,
            None => Err(problem::unknown_session(id)),
        }
    }
}

/// One that nobody gave an id of their own belongs to whoever made it.
fn belongs(row: &SessionRow, user: &str) -> bool {
    let external = row.conversation.as_ref().and_then(|conversation| conversation.external.as_ref());
    external.map_or(row.owner.as_str(), |external| external.user.as_str()) == user
}

fn of_user(external: ConversationId, session: &SessionId) -> Result<External, Problem> {
    let ConversationId { user, id } = external;
    let id = id.unwrap_or_else(|| session.to_string());
    workspace::check_id(&user)?;
    workspace::check_id(&id)?;
    Ok(External { user, id })
}

fn same_agent(row: SessionRow, asked: Option<&str>) -> Result<SessionRow, Problem> {
    // One that was begun with a sandbox of somebody's choice has none, and is just as well a place to work.
    let other = row.conversation.as_ref().map(|known| known.agent.as_str());
    match other.filter(|known| asked.is_some_and(|asked| asked != *known)) {
        None => Ok(row),
        Some(other) => Err(Problem::new(
            Code::NameTaken,
            format!("That conversation is the agent `{}`'s.", other.escape_debug()),
            "Name that agent, or choose another id.",
        )),
    }
}

impl Inner {
    /// What a conversation of this agent may use. A file that is wrong refuses: it might have stated less than none.
    async fn budget_of(&self, agent: &str) -> Result<SetBudget, Problem> {
        let plan = config::plan(&self.home, agent)?;
        let template = self.template(&plan.template).await?;
        Ok(plan.budget(&template).over(&self.gates.loaded().budget))
    }

    /// One that is not deleted.
    async fn begun(&self, name: Option<&str>, external: Option<&External>) -> Result<Option<SessionRow>, Problem> {
        let known = match (name, external) {
            (_, Some(external)) => self.store.conversation(external).await?,
            (Some(name), None) => self.store.session_named(name).await?,
            (None, None) => None,
        };
        Ok(known.filter(|row| row.deleted_at.is_none()))
    }

    /// Deletes conversations that nobody asked for since then.
    pub(crate) async fn forget(&self, before: chrono::DateTime<chrono::Utc>) -> Result<usize, Problem> {
        let mut count = 0;
        for session in self.store.forgotten(before).await? {
            // Somebody may have asked for it just now, and has perhaps a sandbox already.
            if let Some(withdrawn) = self.store.forget_session(&session, before).await? {
                self.session_deleted(&withdrawn);
                count += 1;
            }
        }
        Ok(count)
    }
}
