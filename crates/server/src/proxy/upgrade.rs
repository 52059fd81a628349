//! WebSockets: both connections become byte streams, and each is the other's. Other protocols are not switched to: over
//! `h2c` requests would pass that nobody has looked at.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, header, request::Parts};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::Until;
use crate::App;

/// For both sides to become what they agreed on.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes on their way in each direction.
const BUFFER: usize = 16 * 1024;

/// The connection outside, which is to become a WebSocket.
pub(super) struct Wanted(OnUpgrade);

impl Wanted {
    pub(super) fn of(head: &mut Parts) -> Option<Self> {
        let asked = head.method == Method::GET && is_websocket(&head.headers);
        let upgrade = head.extensions.remove::<OnUpgrade>()?;
        asked.then_some(Self(upgrade))
    }

    pub(super) fn carry(self, app: &App, inside: OnUpgrade, until: Until) {
        let counted = app.sockets.token();
        tokio::spawn(async move {
            tokio::select! {
                () = until => {}
                () = carry(self.0, inside) => {}
            }
            drop(counted);
        });
    }
}

async fn carry(outside: OnUpgrade, inside: OnUpgrade) {
    let both = async { tokio::try_join!(outside, inside) };
    let Ok(Ok((outside, inside))) = timeout(PATIENCE, both).await else { return };
    let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
    let ended = tokio::io::copy_bidirectional_with_sizes(&mut outside, &mut inside, BUFFER, BUFFER).await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a WebSocket to a port broke");
    }
}

pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    asks_for(headers, "websocket")
}

/// Whether the connection is to become one of this protocol.
pub(crate) fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    let words = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let upgrades = words.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let named = headers.get(header::UPGRADE).map(HeaderValue::as_bytes);
    upgrades && named.is_some_and(|named| named.eq_ignore_ascii_case(protocol.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_may_stand_among_others() {
        for (connection, upgrade, want) in [
            ("Upgrade", "WebSocket", true),
            ("keep-alive, upgrade", "websocket", true),
            ("close", "websocket", false),
            ("upgraded", "websocket", false),
            ("upgrade", "h2c", false),
        ] {
            let pair = |name, value| (name, HeaderValue::from_static(value));
            let headers = HeaderMap::from_iter([pair(header::CONNECTION, connection), pair(header::UPGRADE, upgrade)]);
            assert_eq!(is_websocket(&headers), want, "{connection} {upgrade}");
        }
    }
}
