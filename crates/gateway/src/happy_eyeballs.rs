//! Which of a host's addresses answers first (Happy Eyeballs, RFC 8305): they are tried a moment after each other and side by
//! side, families in turn, so that a family whose route is dead costs that moment and not its share of the time. All of them
//! were vetted before; none is looked up here.

use std::{collections::VecDeque, future::poll_fn, io, net::IpAddr, pin::Pin, task::Poll, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::sockets::Socket;

/// How long an address has to itself before the next one is tried beside it, as RFC 8305 advises.
const STAGGER: Duration = Duration::from_millis(250);

/// One attempt, and its place among the sockets.
struct Attempt<T> {
    connecting: Pin<Box<dyn Future<Output = io::Result<T>> + Send>>,
    place: Socket,
}

/// After each address one of the other family, as long as there are both; the first stays the first.
pub(crate) fn in_turn(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let is_first = |address: &IpAddr| addresses.first().is_some_and(|first| first.is_ipv6() == address.is_ipv6());
    let (same, other): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_first);
    let mut other = other.into_iter();
    let mut ordered: Vec<_> = same.into_iter().flat_map(|address| [Some(address), other.next()]).flatten().collect();
    ordered.extend(other);
    ordered
}

/// The first connection that stands, with its place; all others are given up. `place` is for one attempt, and each that runs
/// beside it takes another. Where none is free, addresses are tried one after the other, each with its share of the time.
pub(crate) async fn first<T, F>(
    addresses: Vec<IpAddr>,
    deadline: Instant,
    place: Socket,
    connect: impl Fn(IpAddr) -> F,
) -> io::Result<(T, Socket)>
where
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let (mut untried, mut free) = (VecDeque::from(addresses), Some(place));
    let mut open = VecDeque::<Attempt<T>>::new();
    let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
    let (mut last, mut crowded, mut next) = (timed_out(), false, Instant::now());
    loop {
        let now = Instant::now();
        if !untried.is_empty() && now >= next {
            if free.is_none() {
                free = open.front().and_then(|attempt| attempt.place.another());
            }
            if free.is_none() && crowded {
                // it had its share of the time
                free = open.pop_front().map(|attempt| attempt.place);
            }
            let share = deadline.saturating_duration_since(now) / u32::try_from(untried.len() + 1).unwrap_or(u32::MAX);
            crowded = free.is_none();
            next = now + if crowded { share } else { share.min(STAGGER) };
            if let Some(place) = free.take()
                && let Some(address) = untried.pop_front()
            {
                open.push_back(Attempt { connecting: Box::pin(connect(address)), place });
            }
        }
        let wake = if untried.is_empty() { deadline } else { next.min(deadline) };
        tokio::select! {
            biased;
            (result, place) = ended(&mut open) => match result {
                Ok(stream) => return Ok((stream, place)),
                Err(error) => {
                    last = error;
                    // the next one need not wait for an answer that has come
                    (free, next) = (Some(place), Instant::now());
                    if open.is_empty() && untried.is_empty() {
                        return Err(last);
                    }
                }
            },
            () = sleep_until(wake) => if Instant::now() >= deadline {
                return Err(if open.is_empty() { last } else { timed_out() });
            },
        }
    }
}

/// The first attempt that is over; never, where there is none.
async fn ended<T>(open: &mut VecDeque<Attempt<T>>) -> (io::Result<T>, Socket) {
    poll_fn(|cx| {
        for at in 0..open.len() {
            if let Poll::Ready(result) = open[at].connecting.as_mut().poll(cx)
                && let Some(attempt) = open.remove(at)
            {
                return Poll::Ready((result, attempt.place));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sockets::{Share, Sockets};

    const WHOLE: Duration = Duration::from_secs(15);
    const SIX: &str = "2001:db8::1";
    const FOUR: &str = "192.0.2.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// How an address answers: after so long it stands or refuses; never, where it is not listed.
    type Answers = &'static [(&'static str, u64, bool)];

    struct Tried {
        reached: Result<IpAddr, io::ErrorKind>,
        /// When it was known, and when each address was tried, in milliseconds.
        at: u128,
        order: Vec<(IpAddr, u128)>,
    }

    async fn race(addresses: &[&str], answers: Answers, share: &Share) -> Tried {
        let began = Instant::now();
        let order = Arc::<Mutex<Vec<(IpAddr, u128)>>>::default();
        let addresses = in_turn(&addresses.iter().copied().map(ip).collect::<Vec<_>>());
        let place = share.server().await.expect("a place");
        let reached = first(addresses, began + WHOLE, place, |address| {
            order.lock().expect("lock").push((address, began.elapsed().as_millis()));
            async move {
                let answer = answers.iter().find(|(listed, ..)| ip(listed) == address);
                let Some((_, after, stands)) = answer else { return std::future::pending().await };
                tokio::time::sleep(Duration::from_millis(*after)).await;
                if *stands { Ok(address) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
            }
        })
        .await;
        let at = began.elapsed().as_millis();
        let order = order.lock().expect("lock").clone();
        Tried { reached: reached.map(|(address, _)| address).map_err(|error| error.kind()), at, order }
    }

    fn roomy() -> Share {
        Sockets::new(400).share(100)
    }

    #[test]
    fn families_take_turns_and_the_first_stays_the_first() {
        let sorted = |list: &[&str]| in_turn(&list.iter().copied().map(ip).collect::<Vec<_>>());
        let list = |list: &[&str]| list.iter().copied().map(ip).collect::<Vec<_>>();
        assert_eq!(sorted(&["::1", "::2", "::3", "1.0.0.1"]), list(&["::1", "1.0.0.1", "::2", "::3"]));
        assert_eq!(sorted(&["1.0.0.1", "::1", "::2"]), list(&["1.0.0.1", "::1", "::2"]));
        assert_eq!(sorted(&["1.0.0.1", "1.0.0.2"]), list(&["1.0.0.1", "1.0.0.2"]));
        assert_eq!(sorted(&[]), list(&[]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_route_costs_a_moment() {
        let tried = race(&[SIX, "2001:db8::2", FOUR], &[(FOUR, 10, true)], &roomy()).await;
        assert_eq!((tried.reached, tried.at), (Ok(ip(FOUR)), 260));
        assert_eq!(tried.order, [(ip(SIX), 0), (ip(FOUR), 250)]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_stands_wins_and_the_others_give_their_places_back() {
        let share = Sockets::new(12).share(100);
        let tried = race(&[SIX, FOUR], &[(SIX, 400, true), (FOUR, 10, true)], &share).await;
        assert_eq!((tried.reached, tried.at), (Ok(ip(FOUR)), 260));
        let tried = race(&[SIX, FOUR], &[(SIX, 200, true), (FOUR, 10, true)], &share).await;
        assert_eq!((tried.reached, tried.order.len()), (Ok(ip(SIX)), 1), "nobody else is asked");
        let three = tokio::join!(share.server(), share.server(), share.server());
        assert!(three.0.is_ok() && three.1.is_ok() && three.2.is_ok(), "all places are free");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lets_the_next_one_try_at_once() {
        let answers: Answers = &[(SIX, 0, false), (FOUR, 0, true)];
        let tried = race(&[SIX, FOUR], answers, &roomy()).await;
        assert_eq!((tried.reached, tried.at), (Ok(ip(FOUR)), 0));
        let tried = race(&[SIX, FOUR], &[(SIX, 5, false), (FOUR, 5, false)], &roomy()).await;
        assert_eq!((tried.reached, tried.at), (Err(io::ErrorKind::ConnectionRefused), 10));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_answers_and_that_has_an_end() {
        let tried = race(&[SIX, FOUR], &[], &roomy()).await;
        assert_eq!((tried.reached, tried.at), (Err(io::ErrorKind::TimedOut), WHOLE.as_millis()));
        let tried = race(&[SIX, FOUR], &[(FOUR, 0, false)], &roomy()).await;
        assert_eq!((tried.reached, tried.at), (Err(io::ErrorKind::TimedOut), WHOLE.as_millis()), "one may still come");
    }

    #[tokio::test(start_paused = true)]
    async fn without_another_place_they_are_tried_one_after_the_other() {
        let share = Sockets::new(4).share(100);
        let tried = race(&[SIX, FOUR], &[(FOUR, 10, true)], &share).await;
        assert_eq!((tried.reached, tried.order), (Ok(ip(FOUR)), vec![(ip(SIX), 0), (ip(FOUR), 7625)]));
        assert!(share.server().await.is_ok(), "its only place is free");
    }
}
