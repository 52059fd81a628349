//! First sign-in of a browser: the printed link carries a one-time code in its fragment, which never reaches a log or a
//! Referer header; the page posts it once and gets a cookie.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sandbar_api::{Code, Problem};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Wrong codes that are looked at in one window of time. Guessing 256 bits is hopeless, so the right code always works:
/// refusing it would only let anybody keep its owner out.
const TRIES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The one code of this run of the server.
pub(crate) struct SignIn {
    pending: Mutex<Option<Pending>>,
    wrong: Mutex<Wrong>,
}

pub(crate) struct Pending {
    code: String,
    expires: Instant,
}

/// Wrong codes since the beginning of the window.
struct Wrong {
    since: Instant,
    count: u32,
}

impl SignIn {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        let code = URL_SAFE_NO_PAD.encode(random);
        let now = Instant::now();
        Ok(Self {
            pending: Mutex::new(Some(Pending { code, expires: now + LIFETIME })),
            wrong: Mutex::new(Wrong { since: now, count: 0 }),
        })
    }

    /// The code, while it can be used.
    pub(crate) fn code(&self) -> Option<String> {
        self.lock().as_ref().filter(|pending| pending.is_fresh()).map(|pending| pending.code.clone())
    }

    /// Takes the code out if this is it: of two attempts at once only one succeeds.
    pub(crate) fn redeem(&self, attempt: &str) -> Result<Pending, Problem> {
        let mut slot = self.lock();
        let right = slot.as_ref().filter(|pending| pending.is_fresh()).is_some_and(|pending| pending.is(attempt));
        match slot.take_if(|_| right) {
            Some(pending) => Ok(pending),
            None => Err(self.wrong()),
        }
    }

    fn wrong(&self) -> Problem {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= wrong.since + WINDOW {
            *wrong = Wrong { since: now, count: 0 };
        }
        wrong.count = wrong.count.saturating_add(1);
        if wrong.count <= TRIES {
            return refused();
        }
        let seconds = (wrong.since + WINDOW - now).as_secs() + 1;
        Problem::new(
            Code::TooMany,
            format!("More than {TRIES} wrong sign-in codes were tried in a minute."),
            format!("Try again in {seconds} s; the right code still works."),
        )
    }

    /// Puts a redeemed code back when the token could not be made: the link still works then.
    pub(crate) fn restore(&self, pending: Pending) {
        *self.lock() = Some(pending);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Pending>> {
        // Nothing in here panics half-way; a poisoned lock still holds a whole value.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is(&self, attempt: &str) -> bool {
        self.code.as_bytes().ct_eq(attempt.as_bytes()).into()
    }

    fn is_fresh(&self) -> bool {
        Instant::now() < self.expires
    }
}

const FIX: &str = "Restart `sandbar up` and open the link it prints, or make a token with `sandbar token create`.";

fn refused() -> Problem {
    Problem::new(Code::Unauthenticated, "The sign-in code is wrong, used or expired.", FIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (SignIn, String) {
        let sign_in = SignIn::new().unwrap_or_else(|error| panic!("{error}"));
        let code = sign_in.code().unwrap_or_default();
        (sign_in, code)
    }

    fn refusal(sign_in: &SignIn, attempt: &str) -> Option<Code> {
        sign_in.redeem(attempt).err().map(|problem| problem.code)
    }

    #[tokio::test]
    async fn a_code_works_once() {
        let (sign_in, code) = fresh();
        assert_eq!(code.len(), 43);
        assert_eq!(refusal(&sign_in, "wrong"), Some(Code::Unauthenticated));
        assert_eq!(refusal(&sign_in, &code), None);
        assert_eq!(refusal(&sign_in, &code), Some(Code::Unauthenticated));
        assert_eq!(sign_in.code(), None);
    }

    #[tokio::test]
    async fn a_code_that_bought_nothing_can_be_used_again() {
        let (sign_in, code) = fresh();
        let pending = sign_in.redeem(&code).unwrap_or_else(|problem| panic!("{problem}"));
        sign_in.restore(pending);
        assert_eq!(refusal(&sign_in, &code), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_expires() {
        let (sign_in, code) = fresh();
        tokio::time::advance(LIFETIME).await;
        assert_eq!(refusal(&sign_in, &code), Some(Code::Unauthenticated));
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tries_are_slowed_down_and_never_cost_the_right_code() {
        let (sign_in, code) = fresh();
        for _ in 0..TRIES {
            assert_eq!(refusal(&sign_in, "wrong"), Some(Code::Unauthenticated));
        }
        assert_eq!(refusal(&sign_in, "wrong"), Some(Code::TooMany));
        tokio::time::advance(WINDOW).await;
        assert_eq!(refusal(&sign_in, "wrong"), Some(Code::Unauthenticated));
        for _ in 0..2 * TRIES {
            assert!(refusal(&sign_in, "wrong").is_some());
        }
        assert_eq!(refusal(&sign_in, &code), None);
    }
}
