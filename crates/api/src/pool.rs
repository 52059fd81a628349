//! Pools: warm sandboxes of one template, waiting to be claimed.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    /// How many to keep warm; 0 ends the pool.
    #[schema(maximum = 1000)]
    pub size: u32,
}

pub const MAX_POOL: u32 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Pool {
    pub template: String,
    /// How many are wanted.
    pub size: u32,
    /// How many can be claimed now.
    pub warm: u32,
    /// Why there are fewer than wanted, when that needs saying: memory is short, or making them fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PoolList {
    pub pools: Vec<Pool>,
}
