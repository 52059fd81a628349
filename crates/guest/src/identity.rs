//! Whose guest this is. One that was started ahead of its sandbox is told once, and does nothing before.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::future::{Either, Ready, ready};
use tonic::{
    body::Body,
    codegen::{Service, http},
};

use crate::error::{Code, Fault};

/// Much longer than any id.
const LONGEST: usize = 128;

#[derive(Default)]
pub(crate) struct Identity(OnceLock<String>);

impl Identity {
    pub(crate) fn new(sandbox_id: Option<String>) -> Self {
        Self(sandbox_id.map(OnceLock::from).unwrap_or_default())
    }

    /// Empty as long as nobody said.
    pub(crate) fn sandbox_id(&self) -> &str {
        self.0.get().map_or("", String::as_str)
    }

    pub(crate) fn bind(&self, sandbox_id: String) -> Result<(), Fault> {
        if sandbox_id.is_empty() || sandbox_id.len() > LONGEST || sandbox_id.contains(char::is_control) {
            return Err(Fault::new(Code::BadRequest, "That is no id of a sandbox."));
        }
        let bound = self.0.get_or_init(|| sandbox_id.clone());
        if *bound == sandbox_id {
            return Ok(());
        }
        let message = format!("This is the guest of sandbox {bound}, and it is never another's.");
        Err(Fault::new(Code::WrongState, message))
    }
}

/// What may be called before: to ask, and to tell.
const BEFORE: [&str; 2] = ["/sandbar.guest.v1.Guest/Hello", "/sandbar.guest.v1.Guest/Bind"];

/// Refuses every other call until the guest knows whose it is.
#[derive(Clone)]
pub(crate) struct OnceKnown<S> {
    pub(crate) service: S,
    pub(crate) identity: Arc<Identity>,
}

impl<S> Service<http::Request<Body>> for OnceKnown<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if self.identity.sandbox_id().is_empty() && !BEFORE.contains(&request.uri().path()) {
            let message = "This guest does not know yet whose sandbox it is: call Bind first.";
            let status = tonic::Status::from(Fault::new(Code::WrongState, message));
            return Either::Left(ready(Ok(status.into_http())));
        }
        Either::Right(self.service.call(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once() {
        let identity = Identity::new(None);
        assert_eq!(identity.sandbox_id(), "");
        for wrong in [String::new(), "x".repeat(LONGEST + 1), "a\nb".into()] {
            assert_eq!(identity.bind(wrong).map_err(|fault| fault.code), Err(Code::BadRequest));
        }
        assert_eq!(identity.bind("sbx-a".into()), Ok(()));
        assert_eq!(identity.bind("sbx-a".into()), Ok(()));
        assert_eq!(identity.bind("sbx-b".into()).map_err(|fault| fault.code), Err(Code::WrongState));
        assert_eq!(identity.sandbox_id(), "sbx-a");
        assert!(Identity::new(Some("sbx-a".into())).bind("sbx-b".into()).is_err());
    }
}
