//! Ports of scripted guests: one repeats what it hears, one says nothing more than its end, one breaks, all else is closed.

use futures_util::{StreamExt as _, stream};
use sandbar_guest::protocol::{DialReply, DialRequest, dial_request::Message};
use tonic::{Status, Streaming};

use super::guest::{Boxed, refuse};

pub(in crate::tests) const ECHO: u16 = 7;
pub(in crate::tests) const BREAKS: u16 = 8;
/// As a guest answers that was started by a version without ports.
pub(in crate::tests) const OLD: u16 = 9;
/// Another program inside has it, so that no runtime can be served there.
pub(in crate::tests) const TAKEN: u16 = 10;

pub(super) async fn open(mut requests: Streaming<DialRequest>) -> Result<Boxed<DialReply>, Status> {
    let Some(Message::Port(port)) = requests.message().await?.and_then(|first| first.message) else {
        return Err(refuse("bad_request"));
    };
    match u16::try_from(port) {
        Ok(ECHO) => Ok(Box::pin(requests.map(|request| match request?.message {
            Some(Message::Data(data)) => Ok(DialReply { data, end: false }),
            Some(Message::End(true)) => Ok(DialReply { end: true, ..DialReply::default() }),
            _ => Err(refuse("bad_request")),
        }))),
        Ok(BREAKS) => {
            let words = DialReply { data: "last words".into(), end: false };
            Ok(Box::pin(stream::iter([Ok(words), Err(Status::aborted("it broke"))])))
        }
        Ok(OLD) => Err(Status::unimplemented("dial")),
        _ => Err(refuse("port_closed")),
    }
}
