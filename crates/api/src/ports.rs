//! Servers inside, reached by HTTP: links to previews, and tokens for the agent-sandbox router.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::HumanDuration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"port": 8080}))]
pub struct CreatePreview {
    /// The port inside.
    #[schema(minimum = 1, maximum = 65535)]
    pub port: u16,
}

/// A link that lets one browser in, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Preview {
    /// Its code is in the fragment, which browsers keep to themselves.
    #[schema(example = "http://sbx-01m7g3c3vxvj7sd95wdt31ms14-8080.localhost:7227/.sandbar/enter#code=…")]
    pub url: String,
    /// When the link stops working. A browser that was let in stays so for half a day.
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ttl": "1h"}))]
pub struct CreateRouterToken {
    /// From one second to 30 days. The token cannot be revoked, so make it short.
    pub ttl: HumanDuration,
}

/// A token for one sandbox, good at `/router` and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterToken {
    pub token: String,
    pub expires_at: DateTime<Utc>,
}
