//! One call, in a task of its own so that it outlives its client: reserve, send, pass the answer on, settle.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Response, body::Body as _, body::Incoming};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{sleep, timeout},
};

use super::{
    asked::Asked,
    fact,
    hold::Hold,
    incoming::{self, Scrub},
    meter::Meter,
    outgoing::Outgoing,
    plan::Plan,
    pool::Lease,
    refusal::Refusal,
    relay::{self, Relayed, Sender},
    room::Share,
    route::Endpoint,
};
use crate::{Gateway, Refused, Settings, Warden, body, body::Body, dial::Reach};

pub(super) struct Call {
    pub(super) began: Instant,
    pub(super) gateway: Gateway,
    pub(super) warden: Arc<dyn Warden>,
    pub(super) reach: Arc<Reach>,
    pub(super) asked: Asked,
    pub(super) plan: Plan,
    pub(super) outgoing: Outgoing,
    pub(super) place: OwnedSemaphorePermit,
    /// Of the memory, until the request has left.
    pub(super) share: Option<Share>,
}

/// How far an answer came.
enum End {
    Whole,
    Broken(String),
    /// The client went or does not read.
    Gone,
}

impl Call {
    /// The answer's head as soon as there is one; the rest goes on by itself.
    pub(super) async fn start(self) -> Response<Body> {
        let format = self.asked.endpoint.format();
        let (tell, told) = oneshot::channel();
        tokio::spawn(self.run(tell));
        match told.await {
            Ok(Ok(response)) => response.map(body::stream),
            Ok(Err(refusal)) => refusal.response(format),
            Err(_) => Refusal::unavailable("the call was cut off".into()).response(format),
        }
    }

    async fn run(mut self, mut tell: oneshot::Sender<Result<Response<Relayed>, Refusal>>) {
        // in here, so that a client that goes meanwhile cannot make a reservation be forgotten
        let mut hold = match self.hold().await {
            Ok(hold) => hold,
            Err(refusal) => {
                self.record(&refusal);
                let _ = tell.send(Err(refusal));
                return;
            }
        };
        let counted = hold.counted();
        let (lease, response) = match self.send(&mut hold, &mut tell).await {
            Ok(answered) => answered,
            Err(refusal) => {
                // what was reserved tells itself what became of it
                if !counted {
                    self.record(&refusal.clone().at(&self.plan.selected.upstream));
                }
                let _ = tell.send(Err(refusal));
                return;
            }
        };
        self.outgoing.sent();
        self.share = None;
        let (head, body) = response.into_parts();
        hold.answered(head.status.as_u16());
        let key = self.outgoing.key();
        let failed = !head.status.is_success();
        let meter = Meter::new(self.asked.endpoint, &head.headers, self.plan.hide_usage && !failed);
        let through = Through { meter, scrub: if failed { Scrub::new(key) } else { None } };
        let same_length = through.same_length();
        let (sender, relayed) = relay::relay(body.size_hint().exact().filter(|_| same_length));
        let mut response = Response::new(relayed);
        *response.status_mut() = head.status;
        *response.headers_mut() = incoming::headers(head.headers, same_length, key);
        // a client that has gone is noticed by the first chunk
        let _ = tell.send(Ok(response));
        let mut answer = Answer { body, through, hold };
        if answer.pass_on(sender, &self.reach.settings).await {
            // the place is free for the sandbox, whatever the connection still does
            drop((answer, self.place));
            lease.give_back().await;
        }
    }

    fn record(&self, refusal: &Refusal) {
        fact::record(self.warden.as_ref(), self.asked.endpoint, refusal, self.began);
    }

    /// What was planned before a budget came into force is planned once more.
    async fn hold(&mut self) -> Result<Hold, Refusal> {
        if self.asked.endpoint == Endpoint::CountTokens {
            return Ok(Hold::uncounted(&self.warden));
        }
        let mut held = Hold::reserve(&self.warden, self.plan.reserve.clone()).await;
        if matches!(held, Err(Refused::Changed)) {
            let (memory, settings) = (&self.gateway.llm.memory, &self.reach.settings);
            (self.plan, self.outgoing) = self.asked.plan(self.warden.as_ref(), memory, settings).await?;
            held = Hold::reserve(&self.warden, self.plan.reserve.clone()).await;
        }
        self.asked.forget();
        held.map_err(|refused| Refusal::refused(refused).at(&self.plan.selected.upstream))
    }

    /// Sends it once: again only what certainly did not leave.
    async fn send<T>(
        &self,
        hold: &mut Hold,
        tell: &mut oneshot::Sender<T>,
    ) -> Result<(Lease, Response<Incoming>), Refusal> {
        let (name, settings) = (&self.plan.selected.upstream_name, &self.reach.settings);
        loop {
            let leased = self.gateway.llm.lease(&self.gateway, &self.plan.selected.upstream).await;
            let mut lease = leased.map_err(|cause| {
                let cause = format!("the upstream `{name}` cannot be reached: {cause}");
                hold.free(&*cause);
                Refusal::upstream(cause)
            })?;
            let request = self.outgoing.request(lease.h2()).map_err(|error| {
                let cause = format!("the upstream `{name}` cannot be asked: {error}");
                hold.free(&*cause);
                Refusal::upstream(cause)
            })?;
            hold.sending();
            let given_up = async {
                tell.closed().await;
                sleep(settings.llm_drain).await;
            };
            let sent = tokio::select! {
                sent = timeout(settings.idle_timeout, lease.send(request)) => sent,
                () = given_up => {
                    hold.unknown("the client went, and the upstream did not answer");
                    return Err(Refusal::upstream_slow("the client has gone".into()));
                }
            };
            match sent {
                // nothing was asked to be upgraded
                Ok(Ok(response)) if response.status().is_informational() => {
                    let cause = format!("the upstream `{name}` answered {}", response.status());
                    hold.unknown(&*cause);
                    return Err(Refusal::upstream(cause));
                }
                Ok(Ok(response)) => return Ok((lease, response)),
                Ok(Err(mut error)) => {
                    let unsent = error.take_message().is_some();
                    if unsent && lease.kept {
                        continue;
                    }
                    let cause = format!("the upstream `{name}` broke the connection: {}", error.error());
                    if unsent {
                        hold.free(&*cause)
                    } else {
                        hold.unknown(&*cause)
                    }
                    return Err(Refusal::upstream(cause));
                }
                Err(_) => {
                    let cause = format!("the upstream `{name}` did not answer within {:?}", settings.idle_timeout);
                    hold.unknown(&*cause);
                    return Err(Refusal::upstream_slow(cause));
                }
            }
        }
    }
}

/// An answer that is being read.
struct Answer {
    body: Incoming,
    through: Through,
    hold: Hold,
}

/// What an answer passes on its way. One that is no success may tell of usage too, and may repeat the key.
struct Through {
    meter: Meter,
    scrub: Option<Scrub>,
}

impl Through {
    fn same_length(&self) -> bool {
        !self.meter.changes() && self.scrub.is_none()
    }

    fn push(&mut self, chunk: Bytes) -> Bytes {
        let passed = self.meter.push(chunk);
        match &mut self.scrub {
            Some(scrub) => scrub.push(&passed),
            None => passed,
        }
    }

    fn finish(&mut self) -> Bytes {
        let rest = self.meter.finish();
        match &mut self.scrub {
            Some(scrub) => [scrub.push(&rest), scrub.finish()].concat().into(),
            None => rest,
        }
    }
}

impl Answer {
    /// Whether it was read to its end.
    async fn pass_on(&mut self, sender: Sender, settings: &Settings) -> bool {
        match self.feed(sender, settings).await {
            End::Whole => {
                self.hold.unknown(self.through.meter.missing());
                true
            }
            End::Broken(cause) => {
                self.hold.unknown(cause);
                false
            }
            End::Gone => {
                let read_on = timeout(settings.llm_drain, self.read_on()).await;
                self.hold.unknown(match read_on {
                    Ok(cause) => format!("the client went, and {cause}"),
                    Err(_) => "the client went, and the answer did not end in time".into(),
                });
                false
            }
        }
    }

    async fn feed(&mut self, sender: Sender, settings: &Settings) -> End {
        loop {
            let chunk = tokio::select! {
                biased;
                chunk = timeout(settings.idle_timeout, self.chunk()) => chunk,
                () = sender.gone() => return End::Gone,
            };
            let chunk = match chunk {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => {
                    let rest = self.through.finish();
                    // settled before the client can know the end, so that its next call finds the books up to date
                    self.settle();
                    let _ = sender.chunk(rest).await;
                    let _ = sender.end().await;
                    return End::Whole;
                }
                Ok(Err(cause)) => return End::Broken(format!("the answer broke off: {cause}")),
                Err(_) => return End::Broken("the upstream fell silent".into()),
            };
            if !matches!(timeout(settings.idle_timeout, sender.chunk(chunk)).await, Ok(Ok(()))) {
                return End::Gone;
            }
        }
    }

    /// The next bytes for the client; what they say of usage is settled already.
    async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        while let Some(frame) = self.body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            let passed = self.through.push(data);
            self.settle();
            if !passed.is_empty() {
                return Ok(Some(passed));
            }
        }
        Ok(None)
    }

    fn settle(&mut self) {
        if !self.hold.settled()
            && let Some(usage) = self.through.meter.usage()
        {
            self.hold.used(usage);
        }
    }

    /// For the usage alone; why there is none.
    async fn read_on(&mut self) -> String {
        while !self.hold.settled() {
            match self.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => return "the answer reports no usage".into(),
                Err(error) => return format!("the answer broke off: {error}"),
            }
        }
        String::new()
    }
}
