//! One-time codes of links that let a browser in: random, good once and for ten minutes, kept in memory alone.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

pub(crate) const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// The oldest goes for the newest, so that links nobody opens keep nobody from making more.
const MOST: usize = 1024;

/// What each link is for, the oldest link first.
pub(crate) struct Codes<T>(Mutex<VecDeque<Link<T>>>);

/// A code and what it is for.
pub(crate) struct Link<T> {
    code: String,
    pub(crate) what: T,
    expires: Instant,
}

impl<T> Default for Codes<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Codes<T> {
    /// A code that lets one browser in.
    pub(crate) fn make(&self, what: T) -> Result<String, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        let code = URL_SAFE_NO_PAD.encode(random);
        let now = Instant::now();
        self.add(Link { code: code.clone(), what, expires: now + LIFETIME }, now);
        Ok(code)
    }

    /// Takes the code out, if it is one and for this: of two attempts at once only one succeeds.
    pub(crate) fn redeem(&self, attempt: &str, is_for_this: impl Fn(&T) -> bool) -> Option<Link<T>> {
        let now = Instant::now();
        let mut links = self.lock();
        let at = links.iter().position(|link| {
            bool::from(link.code.as_bytes().ct_eq(attempt.as_bytes())) && is_for_this(&link.what) && now < link.expires
        })?;
        links.remove(at)
    }

    /// Puts a redeemed code back that let nobody in: the link still works then, for as long as before.
    pub(crate) fn restore(&self, link: Link<T>) {
        self.add(link, Instant::now());
    }

    fn add(&self, link: Link<T>, now: Instant) {
        let mut links = self.lock();
        links.retain(|link| now < link.expires);
        if links.len() == MOST {
            links.pop_front();
        }
        links.push_back(link);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Link<T>>> {
        // Nothing in here panics half-way; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(codes: &Codes<u16>) -> String {
        codes.make(80).unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_taken(codes: &Codes<u16>, code: &str, port: u16) -> bool {
        codes.redeem(code, |made| *made == port).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_works_once_for_what_it_is_for() {
        let codes = Codes::default();
        let code = made(&codes);
        assert_eq!(code.len(), 43);
        assert!(!is_taken(&codes, &code, 81) && !is_taken(&codes, "", 80));
        assert!(is_taken(&codes, &code, 80));
        assert!(!is_taken(&codes, &code, 80));
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_that_let_nobody_in_works_again_for_as_long_as_before() {
        let codes = Codes::default();
        let code = made(&codes);
        tokio::time::advance(LIFETIME / 2).await;
        let link = codes.redeem(&code, |_| true).unwrap_or_else(|| panic!("it is a code"));
        codes.restore(link);
        let link = codes.redeem(&code, |_| true).unwrap_or_else(|| panic!("it is a code again"));
        codes.restore(link);
        tokio::time::advance(LIFETIME / 2).await;
        assert!(!is_taken(&codes, &code, 80));
    }

    #[tokio::test(start_paused = true)]
    async fn codes_expire_and_are_not_kept_without_end() {
        let codes = Codes::default();
        let first = made(&codes);
        tokio::time::advance(LIFETIME).await;
        assert!(!is_taken(&codes, &first, 80));
        let second = made(&codes);
        assert_eq!(codes.lock().len(), 1);
        let newest = (0..MOST).fold(String::new(), |_, _| made(&codes));
        assert_eq!(codes.lock().len(), MOST);
        assert!(!is_taken(&codes, &second, 80));
        assert!(is_taken(&codes, &newest, 80));
    }
}
