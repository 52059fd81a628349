//! What a provider has and the store does not know. It is removed only where its mark proves that no store ever promised to
//! keep it; everything else is set aside for a person to decide about.

use sandbar_api::InstanceId;
use sandbar_provider::{Error, Made, Mark, Provider, Quarantine};

use crate::{Inner, clock, identity::Fit};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is set aside already.
    Leave,
    /// A server of this store was making or removing it when it was killed.
    Remove,
    Quarantine(&'static str),
}

fn fate(mark: Option<&Mark>, ours: &InstanceId, fit: Fit) -> Fate {
    match mark {
        Some(Mark::Quarantined(_)) => Fate::Leave,
        Some(mark) if mark.origin().is_some_and(|origin| origin.instance != *ours) => {
            Fate::Quarantine("it was made for another instance")
        }
        Some(Mark::Begun(_)) if fit == Fit::Same => Fate::Remove,
        Some(_) => Fate::Quarantine("the database does not know it"),
        None => Fate::Quarantine("the database does not know it, and it does not say whose it is"),
    }
}

pub(super) async fn settle(inner: &Inner, provider: &dyn Provider, made: Made<'_>, mark: Option<Mark>, fit: Fit) {
    let origin = mark.as_ref().and_then(Mark::origin).cloned();
    let done = match fate(mark.as_ref(), &inner.instance, fit) {
        Fate::Leave => return,
        Fate::Remove => {
            tracing::info!(provider = provider.name(), id = %made, "removes what a server was making when it ended");
            remove(provider, made).await
        }
        Fate::Quarantine(reason) => {
            let quarantine = Quarantine { since: clock::now(), reason: reason.to_owned(), origin };
            tracing::warn!(provider = provider.name(), id = %made, reason, "in quarantine; `sandbar quarantine` decides about it");
            provider.mark(made, &Mark::Quarantined(quarantine)).await
        }
    };
    if let Err(error) = done {
        tracing::error!(provider = provider.name(), id = %made, %error, "what the database does not know is left as it is");
    }
}

pub(crate) async fn remove(provider: &dyn Provider, made: Made<'_>) -> Result<(), Error> {
    match made {
        Made::Sandbox(id) => provider.destroy(id).await,
        Made::Snapshot(id) => provider.discard(id).await,
    }
}

/// The store knows it, whatever its mark says: one that was set aside comes back.
pub(super) async fn keep(inner: &Inner, provider: &dyn Provider, made: Made<'_>, mark: Option<&Mark>) {
    let origin = inner.origin();
    let is_kept =
        matches!(mark, Some(Mark::Kept(kept)) if kept.instance == origin.instance && kept.epoch <= origin.epoch);
    if is_kept {
        return;
    }
    if mark.is_some_and(Mark::is_quarantined) {
        tracing::info!(provider = provider.name(), id = %made, "out of quarantine: the database knows it");
    }
    if let Err(error) = provider.mark(made, &Mark::Kept(origin)).await {
        tracing::error!(provider = provider.name(), id = %made, %error, "it is not marked as this instance's; the next start tries again");
    }
}

#[cfg(test)]
mod tests {
    use sandbar_provider::Origin;

    use super::*;

    #[test]
    fn only_what_no_store_promised_to_keep_is_removed() {
        let (ours, theirs) = (InstanceId::from_parts(1, [1; 10]), InstanceId::from_parts(1, [2; 10]));
        let of = |instance: &InstanceId| Origin { instance: instance.clone(), epoch: 3 };
        let quarantined = Quarantine { since: clock::now(), reason: String::new(), origin: Some(of(&ours)) };
        let cases = [
            (Some(Mark::Begun(of(&ours))), Fit::Same, true),
            (Some(Mark::Begun(of(&ours))), Fit::Unmarked, false),
            (Some(Mark::Begun(of(&ours))), Fit::Other, false),
            (Some(Mark::Begun(of(&theirs))), Fit::Same, false),
            (Some(Mark::Kept(of(&ours))), Fit::Same, false),
            (Some(Mark::Kept(of(&theirs))), Fit::Same, false),
            (Some(Mark::Quarantined(quarantined.clone())), Fit::Same, false),
            (None, Fit::Same, false),
            (None, Fit::Unmarked, false),
        ];
        for (mark, fit, removed) in cases {
            assert_eq!(fate(mark.as_ref(), &ours, fit) == Fate::Remove, removed, "{mark:?} {fit:?}");
        }
        assert_eq!(fate(Some(&Mark::Quarantined(quarantined)), &ours, Fit::Other), Fate::Leave);
    }
}
