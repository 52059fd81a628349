//! Signing a browser in: a link carries a one-time code in its fragment, which never reaches a log or a Referer header; the
//! page posts it once and gets a cookie.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sandbar_api::{Code, Problem};
use tokio::time::Instant;

use crate::codes::{Codes, Link};

/// Wrong codes that are looked at in one window of time. Guessing 256 bits is hopeless, so the right code always works:
/// refusing it would only let anybody keep its owner out.
const TRIES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The codes of this run of the server; each makes its bearer an admin.
pub(crate) struct SignIn {
    codes: Codes<()>,
    wrong: Mutex<Wrong>,
}

/// Wrong codes since the beginning of the window.
struct Wrong {
    since: Instant,
    count: u32,
}

impl SignIn {
    pub(crate) fn new() -> Self {
        Self { codes: Codes::default(), wrong: Mutex::new(Wrong { since: Instant::now(), count: 0 }) }
    }

    pub(crate) fn make(&self) -> Result<String, getrandom::Error> {
        self.codes.make(())
    }

    /// Takes the code out if it is one: of two attempts at once only one succeeds.
    pub(crate) fn redeem(&self, attempt: &str) -> Result<Link<()>, Problem> {
        self.codes.redeem(attempt, |()| true).ok_or_else(|| self.wrong())
    }

    /// Puts a redeemed code back when nobody could be signed in.
    pub(crate) fn restore(&self, link: Link<()>) {
        self.codes.restore(link);
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
}

fn refused() -> Problem {
    let fix = "Run `sandbar open` on the server's machine and open the link it prints.";
    Problem::new(Code::Unauthenticated, "The sign-in code is wrong, used or expired.", fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (SignIn, String) {
        let sign_in = SignIn::new();
        let code = sign_in.make().unwrap_or_else(|error| panic!("{error}"));
        (sign_in, code)
    }

    fn refusal(sign_in: &SignIn, attempt: &str) -> Option<Code> {
        sign_in.redeem(attempt).err().map(|problem| problem.code)
    }

    #[tokio::test]
    async fn each_code_works_once_and_beside_others() {
        let (sign_in, code) = fresh();
        let other = sign_in.make().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(refusal(&sign_in, "wrong"), Some(Code::Unauthenticated));
        assert_eq!(refusal(&sign_in, &code), None);
        assert_eq!(refusal(&sign_in, &code), Some(Code::Unauthenticated));
        assert_eq!(refusal(&sign_in, &other), None);
        assert_eq!(refusal(&sign_in, ""), Some(Code::Unauthenticated));
    }

    #[tokio::test]
    async fn a_code_that_bought_nothing_can_be_used_again() {
        let (sign_in, code) = fresh();
        let link = sign_in.redeem(&code).unwrap_or_else(|problem| panic!("{problem}"));
        sign_in.restore(link);
        assert_eq!(refusal(&sign_in, &code), None);
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
