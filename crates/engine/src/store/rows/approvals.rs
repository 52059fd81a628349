//! Approvals: opened, then closed exactly once.

use async_trait::async_trait;
use chrono::{DateTime, SubsecRound as _, Utc};
use sandbar_api::{Approval, ApprovalAnswer, ApprovalId, ApprovalState, Delivery, ProcessId, SandboxId, SessionId};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, This,
    columns::{self, flag, from_json, parse, text, time},
    events::NewEvent,
    gates, tokens,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result,
    gate::{ApprovalFilter, ApprovalStore, Closed, Consequence},
};

const SANDBOX_GONE: &str = "sandbox_gone";

#[async_trait]
impl ApprovalStore for This {
    async fn open_approval(&self, approval: &Approval) -> Result<()> {
        let approval = approval.clone();
        self.writer.write(Ordinary, move |transaction| Box::pin(open(transaction, approval.clone()))).await
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>> {
        by_id(&self.readers, id).await
    }

    async fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        let states: Vec<_> = filter.states.iter().map(|state| state.as_str()).collect();
        let rows = sqlx::query(concat!(
            "SELECT * FROM approvals WHERE ($1 = '[]' OR state IN ",
            list!("$1"),
            ") AND ($2 IS NULL OR sandbox = $2) AND ($3 IS NULL OR session = $3) ORDER BY id DESC LIMIT $4"
        ))
        .bind(columns::json(&states)?)
        .bind(filter.sandbox.as_ref().map(|id| id.as_str()))
        .bind(filter.session.as_ref().map(|id| id.as_str()))
        .bind(i64::from(filter.limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().rev().map(decode).collect()
    }

    async fn answer_approval(
        &self,
        id: &ApprovalId,
        answer: ApprovalAnswer,
        also: Option<Consequence>,
    ) -> Result<Closed> {
        let id = id.clone();
        let closed = self.writer.write(Essential, move |transaction| {
            Box::pin(self::answer(transaction, id.clone(), answer.clone(), also.clone()))
        });
        lost(closed.await)
    }

    async fn approval_after_writes(&self, id: &ApprovalId) -> Result<Option<(Approval, Option<String>)>> {
        let id = id.clone();
        lost(self.writer.write(Essential, move |transaction| Box::pin(after_writes(transaction, id.clone()))).await)
    }

    async fn expire_approvals(&self, now: DateTime<Utc>) -> Result<Vec<Approval>> {
        // Most times nobody is late, and a transaction would be for nothing.
        let due = sqlx::query("SELECT 1 FROM approvals WHERE state = 'open' AND deadline <= $1 LIMIT 1")
            .bind(now.timestamp_micros())
            .fetch_optional(&self.readers)
            .await?;
        if due.is_none() {
            return Ok(Vec::new());
        }
        self.writer.write(Essential, move |transaction| Box::pin(expire(transaction, now))).await
    }

    async fn next_deadline(&self) -> Result<Option<DateTime<Utc>>> {
        let next: Option<i64> = sqlx::query_scalar("SELECT min(deadline) FROM approvals WHERE state = 'open'")
            .fetch_one(&self.readers)
            .await?;
        next.map(time).transpose()
    }

    async fn withdraw_approvals(&self, sandbox: &SandboxId) -> Result<Vec<Approval>> {
        let sandbox = sandbox.to_string();
        self.writer
            .write(Essential, move |transaction| Box::pin(withdraw(transaction, sandbox.clone(), SANDBOX_GONE.into())))
            .await
    }

    async fn withdraw_approval(&self, id: &ApprovalId, reason: &str) -> Result<Option<Approval>> {
        let (id, reason) = (id.to_string(), reason.to_owned());
        let withdrawn = self
            .writer
            .write(Essential, move |transaction| Box::pin(withdraw(transaction, id.clone(), reason.clone())));
        Ok(withdrawn.await?.pop())
    }

    async fn renew_approval(&self, id: &ApprovalId, context: &Value) -> Result<bool> {
        let (id, context) = (id.clone(), columns::json(context)?);
        self.writer.write(Ordinary, move |transaction| Box::pin(renew(transaction, id.clone(), context.clone()))).await
    }

    async fn terminal_approval(&self, process: &ProcessId) -> Result<Option<Approval>> {
        let row = sqlx::query("SELECT * FROM approvals WHERE process = $1 ORDER BY id DESC LIMIT 1")
            .bind(process.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(decode).transpose()
    }

    async fn settle_delivery(&self, id: &ApprovalId, delivery: Delivery) -> Result<Approval> {
        let id = id.clone();
        self.writer.write(Essential, move |transaction| Box::pin(settle(transaction, id.clone(), delivery))).await
    }

    async fn pending_deliveries(&self) -> Result<Vec<(Approval, String)>> {
        let rows = sqlx::query("SELECT * FROM approvals WHERE delivery = 'pending' ORDER BY id")
            .fetch_all(&self.readers)
            .await?;
        let staged = |row: &DbRow| Ok((decode(row)?, row.try_get::<Option<String>, _>("staged")?.unwrap_or_default()));
        rows.iter().map(staged).collect()
    }

    async fn spend_approval(&self, id: &ApprovalId) -> Result<bool> {
        let id = id.clone();
        self.writer.write(Essential, move |transaction| Box::pin(spend(transaction, id.clone()))).await
    }

    async fn unspent_approvals(&self) -> Result<Vec<Approval>> {
        let rows = sqlx::query(
            "SELECT * FROM approvals
                 WHERE state = 'answered' AND spent = 0 AND process IS NULL AND deadline > $1 ORDER BY id",
        )
        .bind(Utc::now().timestamp_micros())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(decode).collect()
    }
}

#[cfg(not(test))]
fn lost<T>(reply: Result<T>) -> Result<T> {
    reply
}

#[cfg(test)]
use crate::store::fault::lost::lost;

async fn open(transaction: &mut Transaction, approval: Approval) -> Result<()> {
    sqlx::query(
        "INSERT INTO approvals (id, kind, state, session, sandbox, question, choices, takes_text, context,
                                answerable_by, created_at, deadline, on_deadline, process)
         VALUES ($1, $2, 'open', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
    .bind(approval.id.as_str())
    .bind(approval.kind.as_str())
    .bind(approval.session.as_str())
    .bind(approval.sandbox.as_ref().map(|id| id.as_str()))
    .bind(text(&approval.question))
    .bind(columns::json(&approval.choices)?)
    .bind(i64::from(approval.takes_text))
    .bind(columns::json(&approval.context)?)
    .bind(approval.answerable_by.as_str())
    .bind(approval.created_at.timestamp_micros())
    .bind(approval.deadline.timestamp_micros())
    .bind(text(&approval.on_deadline))
    .bind(approval.context["process"].as_str().map(text))
    .execute(&mut transaction.connection)
    .await?;
    let mut data = told(&approval);
    data["deadline"] = json!(approval.deadline.trunc_subsecs(6));
    tell(transaction, "approval.opened", &approval, data).await
}

async fn answer(
    transaction: &mut Transaction,
    id: ApprovalId,
    mut answer: ApprovalAnswer,
    also: Option<Consequence>,
) -> Result<Closed> {
    answer.at = transaction.now;
    let staged = match &also {
        Some(Consequence::Typing(staged)) => Some(staged.as_str()),
        Some(Consequence::Rules(_)) | None => None,
    };
    let taken = sqlx::query(
        "UPDATE approvals SET state = 'answered', answer = $2, closed_at = $3, staged = $4,
                delivery = CASE WHEN $4 IS NULL THEN NULL ELSE 'pending' END
         WHERE id = $1 AND state = 'open' AND deadline > $3 RETURNING *",
    )
    .bind(id.as_str())
    .bind(columns::json(&answer)?)
    .bind(transaction.now.timestamp_micros())
    .bind(staged.map(text))
    .fetch_optional(&mut transaction.connection)
    .await?;
    if let Some(row) = taken {
        let approval = decode(&row)?;
        let mut data = told(&approval);
        // Who and what, never the text: it may be anything, also a password.
        data["choice"] = answer.choice.into();
        data["by"] = answer.by.into();
        tell(transaction, "approval.answered", &approval, data).await?;
        if let Some(Consequence::Rules(rules)) = also {
            gates::set(transaction, rules).await?;
        }
        return Ok(Closed::Now(approval));
    }
    let found = by_id(&mut transaction.connection, &id).await?;
    let approval = found.ok_or_else(|| Error::Missing(format!("approval {id}")))?;
    if approval.state != ApprovalState::Open {
        return Ok(Closed::Before(approval));
    }
    let expired = sqlx::query("UPDATE approvals SET state = 'expired', closed_at = $2 WHERE id = $1 RETURNING *")
        .bind(id.as_str())
        .bind(transaction.now.timestamp_micros())
        .fetch_one(&mut transaction.connection)
        .await?;
    let approval = decode(&expired)?;
    tell_expired(transaction, &approval).await?;
    Ok(Closed::Before(approval))
}

async fn after_writes(transaction: &mut Transaction, id: ApprovalId) -> Result<Option<(Approval, Option<String>)>> {
    // By a change that changes nothing: it waits for whoever else is changing the row, a commit of ours that nobody heard
    // of included, and sees what is there then.
    let row = sqlx::query("UPDATE approvals SET state = state WHERE id = $1 RETURNING *")
        .bind(id.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?;
    row.map(|row| Ok((decode(&row)?, row.try_get("staged")?))).transpose()
}

async fn expire(transaction: &mut Transaction, now: DateTime<Utc>) -> Result<Vec<Approval>> {
    let rows = sqlx::query(
        "UPDATE approvals SET state = 'expired', closed_at = $2 WHERE state = 'open' AND deadline <= $1 RETURNING *",
    )
    .bind(now.timestamp_micros())
    .bind(transaction.now.timestamp_micros())
    .fetch_all(&mut transaction.connection)
    .await?;
    let expired = in_order(&rows)?;
    for approval in &expired {
        tell_expired(transaction, approval).await?;
    }
    Ok(expired)
}

/// All that a session still asks, whichever sandbox it was for.
pub(super) async fn withdraw_of_session(transaction: &mut Transaction, session: &SessionId) -> Result<Vec<Approval>> {
    withdraw(transaction, session.to_string(), SANDBOX_GONE.into()).await
}

/// What is open under this id: its own, its sandbox's or its session's, which no id can be at once.
async fn withdraw(transaction: &mut Transaction, id: String, reason: String) -> Result<Vec<Approval>> {
    let rows = sqlx::query(
        "UPDATE approvals SET state = 'withdrawn', closed_at = $2, reason = $3
         WHERE state = 'open' AND (id = $1 OR sandbox = $1 OR session = $1) RETURNING *",
    )
    .bind(id)
    .bind(transaction.now.timestamp_micros())
    .bind(text(&reason))
    .fetch_all(&mut transaction.connection)
    .await?;
    let withdrawn = in_order(&rows)?;
    for approval in &withdrawn {
        let mut data = told(approval);
        data["reason"] = json!(approval.reason);
        tell(transaction, "approval.withdrawn", approval, data).await?;
    }
    Ok(withdrawn)
}

async fn renew(transaction: &mut Transaction, id: ApprovalId, context: String) -> Result<bool> {
    let renewed = sqlx::query("UPDATE approvals SET context = $2 WHERE id = $1 AND state = 'open'")
        .bind(id.as_str())
        .bind(context)
        .execute(&mut transaction.connection)
        .await?;
    Ok(renewed.rows_affected() == 1)
}

async fn settle(transaction: &mut Transaction, id: ApprovalId, delivery: Delivery) -> Result<Approval> {
    let settled = sqlx::query("UPDATE approvals SET delivery = $2 WHERE id = $1 AND delivery = 'pending' RETURNING *")
        .bind(id.as_str())
        .bind(delivery.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?;
    let Some(row) = settled.filter(|_| delivery != Delivery::Pending) else {
        let found = by_id(&mut transaction.connection, &id).await?;
        return found.ok_or_else(|| Error::Missing(format!("approval {id}")));
    };
    let approval = decode(&row)?;
    let kind = if delivery == Delivery::Typed { "approval.typed" } else { "approval.refused" };
    tell(transaction, kind, &approval, told(&approval)).await?;
    Ok(approval)
}

async fn spend(transaction: &mut Transaction, id: ApprovalId) -> Result<bool> {
    let spent = sqlx::query(
        "UPDATE approvals SET spent = 1 WHERE id = $1 AND state = 'answered' AND spent = 0 AND deadline > $2",
    )
    .bind(id.as_str())
    .bind(transaction.now.timestamp_micros())
    .execute(&mut transaction.connection)
    .await?;
    Ok(spent.rows_affected() == 1)
}

pub(super) async fn prune(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<()> {
    sqlx::query("DELETE FROM approvals WHERE state <> 'open' AND closed_at < $1")
        .bind(before.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

fn told(approval: &Approval) -> Value {
    let mut context = approval.context.clone();
    if let Some(context) = context.as_object_mut() {
        // What is on a screen may be anything, and events are kept for long and sent away.
        context.retain(|name, _| name != "screen" && name != "keys");
    }
    json!({
        "approval": approval.id.as_str(),
        "kind": approval.kind.as_str(),
        "session": approval.session.as_str(),
        "question": approval.question,
        "context": context,
    })
}

async fn tell_expired(transaction: &mut Transaction, approval: &Approval) -> Result<()> {
    let mut data = told(approval);
    data["choice"] = approval.on_deadline.clone().into();
    tell(transaction, "approval.expired", approval, data).await
}

async fn tell(transaction: &mut Transaction, kind: &str, approval: &Approval, data: Value) -> Result<()> {
    let sandbox = approval.sandbox.as_ref().map(|id| id.as_str());
    let process = approval.context["process"].as_str();
    transaction.append(NewEvent { kind, sandbox, process, data }).await
}

async fn by_id(executor: impl Executor<'_>, id: &ApprovalId) -> Result<Option<Approval>> {
    let row =
        sqlx::query::<Db>("SELECT * FROM approvals WHERE id = $1").bind(id.as_str()).fetch_optional(executor).await?;
    row.as_ref().map(decode).transpose()
}

/// By age: `RETURNING` promises no order.
fn in_order(rows: &[DbRow]) -> Result<Vec<Approval>> {
    let mut approvals = rows.iter().map(decode).collect::<Result<Vec<_>>>()?;
    approvals.sort_by(|one, other| one.id.as_str().cmp(other.id.as_str()));
    Ok(approvals)
}

fn decode(row: &DbRow) -> Result<Approval> {
    let kind: &str = row.try_get("kind")?;
    Ok(Approval {
        id: parse(row.try_get("id")?)?,
        kind: serde_json::from_value(kind.into()).map_err(|_| Error::Unreadable(format!("the kind `{kind}`")))?,
        state: parse(row.try_get("state")?)?,
        session: parse(row.try_get("session")?)?,
        sandbox: row.try_get::<Option<&str>, _>("sandbox")?.map(parse).transpose()?,
        question: row.try_get("question")?,
        choices: from_json(row.try_get("choices")?)?,
        takes_text: flag(row.try_get("takes_text")?),
        context: from_json(row.try_get("context")?)?,
        answerable_by: tokens::role(row.try_get("answerable_by")?)?,
        created_at: time(row.try_get("created_at")?)?,
        deadline: time(row.try_get("deadline")?)?,
        on_deadline: row.try_get("on_deadline")?,
        answer: row.try_get::<Option<&str>, _>("answer")?.map(from_json).transpose()?,
        delivery: row.try_get::<Option<&str>, _>("delivery")?.map(parse).transpose()?,
        reason: row.try_get("reason")?,
        closed_at: row.try_get::<Option<i64>, _>("closed_at")?.map(time).transpose()?,
    })
}
