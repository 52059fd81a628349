//! Request bodies that are passed on as they arrive: nothing is collected, the engine sets the pace.

use std::{pin::Pin, time::Duration};

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;
use sandbar_api::Problem;
use sandbar_engine::ByteStream;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::problem::bad_request;

/// Of silence, and of all.
const DRAIN_SILENCE: Duration = Duration::from_secs(1);
const DRAIN_TIME: Duration = Duration::from_secs(10);
const DRAIN_BYTES: usize = 64 * 1024 * 1024;

pub(crate) fn broke_off(error: axum::Error) -> Problem {
    bad_request(format!("The upload broke off: {error}."), "Send it again; nothing was changed.")
}

/// Reads and forgets some of the rest of a body that is refused. Closing with bytes unread would reset the connection,
/// and the caller would see a broken pipe instead of the reason.
pub(crate) async fn drain(pieces: &mut BodyDataStream) {
    let reading = async {
        let mut left = DRAIN_BYTES;
        while left > 0
            && let Ok(Some(Ok(piece))) = timeout(DRAIN_SILENCE, pieces.next()).await
        {
            left = left.saturating_sub(piece.len());
        }
    };
    // Best effort: a caller that still sends after this gets the reset.
    let _ = timeout(DRAIN_TIME, reading).await;
}

/// Runs `take` on the body as a stream.
pub(crate) async fn feed<T, F>(body: Body, take: impl FnOnce(ByteStream) -> F) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    let (sender, receiver) = mpsc::channel(1);
    let taking = take(Box::pin(ReceiverStream::new(receiver)) as Pin<Box<_>>);
    let pumping = async move {
        let mut pieces = body.into_data_stream();
        loop {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                () = sender.closed() => return drain(&mut pieces).await,
            };
            let Some(piece) = piece else { return };
            let broken = piece.is_err();
            if sender.send(piece.map_err(broke_off)).await.is_err() {
                return drain(&mut pieces).await;
            }
            if broken {
                return;
            }
        }
    };
    let (taken, ()) = tokio::join!(taking, pumping);
    taken
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{TryStreamExt as _, stream};
    use sandbar_api::Code;

    use super::*;

    fn pieces(pieces: Vec<Result<Bytes, std::io::Error>>) -> Body {
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn everything_arrives_and_a_break_is_told() {
        let count = |stream: ByteStream| stream.try_fold(0, async |sum, piece: Bytes| Ok(sum + piece.len()));
        let whole = pieces(vec![Ok("abc".into()), Ok("de".into())]);
        assert_eq!(feed(whole, count).await, Ok(5));
        let broken = pieces(vec![Ok("abc".into()), Err(std::io::Error::other("gone"))]);
        assert_eq!(feed(broken, count).await.map_err(|problem| problem.code), Err(Code::BadRequest));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_rest_is_read_for_a_while() {
        let trickle = |length: usize| {
            let pieces = stream::iter(0..length).then(|_| async {
                tokio::time::sleep(DRAIN_SILENCE / 2).await;
                Ok::<_, std::io::Error>(Bytes::from("x"))
            });
            Body::from_stream(pieces).into_data_stream()
        };
        let mut short = trickle(6);
        drain(&mut short).await;
        assert!(short.next().await.is_none(), "all of it was read");
        let begun = tokio::time::Instant::now();
        drain(&mut trickle(1000)).await;
        assert!((DRAIN_TIME..DRAIN_TIME * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_does_not_wait_for_a_body_that_never_ends() {
        let endless = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let refused = feed(endless, |_| async { Err::<(), _>(Problem::new(Code::TooLarge, "", "")) }).await;
        assert_eq!(refused.map_err(|problem| problem.code), Err(Code::TooLarge));
    }
}
