//! The one-time codes of links to previews.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use super::Place;

pub(crate) const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// The oldest goes for the newest, so that links nobody opens keep nobody from making more.
const MOST: usize = 1024;

/// Oldest first.
#[derive(Default)]
pub(crate) struct Codes(Mutex<VecDeque<Link>>);

struct Link {
    code: String,
    place: Place,
    owner: String,
    expires: Instant,
}

impl Codes {
    /// A code that lets one browser in, in the name of whoever asked for it.
    pub(crate) fn make(&self, place: Place, owner: String) -> Result<String, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        let code = URL_SAFE_NO_PAD.encode(random);
        let now = Instant::now();
        let mut links = self.lock();
        links.retain(|link| now < link.expires);
        if links.len() == MOST {
            links.pop_front();
        }
        links.push_back(Link { code: code.clone(), place, owner, expires: now + LIFETIME });
        Ok(code)
    }

    /// The owner of the code, which is thereby used up. At another place it is not one.
    pub(super) fn redeem(&self, attempt: &str, sandbox: &str, port: u16) -> Option<String> {
        let now = Instant::now();
        let mut links = self.lock();
        let at = links.iter().position(|link| {
            bool::from(link.code.as_bytes().ct_eq(attempt.as_bytes()))
                && link.place.port == port
                && link.place.sandbox.as_str() == sandbox
                && now < link.expires
        })?;
        links.remove(at).map(|link| link.owner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Link>> {
        // Nothing in here panics half-way; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SANDBOX: &str = "sbx-01m7g3c3vxvj7sd95wdt31ms14";

    fn place(port: u16) -> Place {
        Place { sandbox: SANDBOX.parse().unwrap_or_else(|error| panic!("{error:?}")), port }
    }

    fn made(codes: &Codes) -> String {
        codes.make(place(80), "socket".to_owned()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_works_once_where_it_is_for() {
        let codes = Codes::default();
        let code = made(&codes);
        assert_eq!(codes.redeem(&code, SANDBOX, 81), None);
        assert_eq!(codes.redeem(&code, "sbx-01m7g3c3vxvj7sd95wdt31ms15", 80), None);
        assert_eq!(codes.redeem("", SANDBOX, 80), None);
        assert_eq!(codes.redeem(&code, SANDBOX, 80).as_deref(), Some("socket"));
        assert_eq!(codes.redeem(&code, SANDBOX, 80), None);
    }

    #[tokio::test(start_paused = true)]
    async fn codes_expire_and_are_not_kept_without_end() {
        let codes = Codes::default();
        let first = made(&codes);
        tokio::time::advance(LIFETIME).await;
        assert_eq!(codes.redeem(&first, SANDBOX, 80), None);
        let second = made(&codes);
        assert_eq!(codes.lock().len(), 1);
        let newest = (0..MOST).fold(String::new(), |_, _| made(&codes));
        assert_eq!(codes.lock().len(), MOST);
        assert_eq!(codes.redeem(&second, SANDBOX, 80), None);
        assert!(codes.redeem(&newest, SANDBOX, 80).is_some());
    }
}
