//! Which store this is.

use sandbar_api::InstanceId;

use super::{
    Connection, columns,
    writer::{self, Transaction},
};
use crate::store::{Identity, Result};

/// Of a store that has its tables.
pub(super) async fn identity(connection: &mut Connection) -> Result<Identity> {
    let id: Option<String> =
        sqlx::query_scalar("SELECT id FROM instance WHERE one = 1").fetch_optional(&mut *connection).await?;
    let instance = id.map(|id| columns::parse(&id)).transpose()?;
    Ok(Identity { instance, epoch: writer::newest(connection).await? })
}

pub(super) async fn set(transaction: &mut Transaction, instance: &InstanceId) -> Result<()> {
    sqlx::query("INSERT INTO instance (one, id) VALUES (1, $1)")
        .bind(instance.as_str())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}
