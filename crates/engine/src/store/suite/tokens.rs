//! Tokens.

use chrono::TimeDelta;
use sandbar_api::{Role, Token, TokenId};

use super::{Home, Outcome, kinds, now};
use crate::store::{Error, Store as _};

pub(in crate::store) async fn they_work_until_expired_or_revoked<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let start = now();
    let token = |number: u8, role, expires_at| Token {
        id: TokenId::from_parts(u64::from(number), [number; 10]),
        name: format!("token {number}"),
        role,
        session: None,
        created_at: start,
        expires_at,
    };
    let forever = token(1, Role::Admin, None);
    let short = token(2, Role::Viewer, Some(start + TimeDelta::minutes(1)));
    let operator = token(3, Role::Operator, None);
    for (number, token) in [&forever, &short, &operator].into_iter().enumerate() {
        store.create_token(token, [number as u8; 32]).await?;
    }
    assert!(store.create_token(&token(4, Role::Viewer, None), [0; 32]).await.is_err(), "a secret is one token's");
    assert_eq!(store.tokens().await?, [forever.clone(), short.clone(), operator.clone()]);
    assert_eq!(store.token([9; 32], start).await?, None);
    assert_eq!(store.token([0; 32], start).await?, Some(forever.clone()));
    assert_eq!(store.token([1; 32], start).await?, Some(short.clone()));
    assert_eq!(store.token([1; 32], start + TimeDelta::minutes(1)).await?, None, "expired");
    assert_eq!(store.token([2; 32], start).await?, Some(operator.clone()));

    assert_eq!(store.token_of(short.id.as_str()).await?, Some(short.clone()), "whether it has expired or not");
    assert_eq!(store.token_of(forever.id.as_str()).await?, Some(forever.clone()));

    store.revoke_token(&forever.id).await?;
    assert_eq!(store.token([0; 32], start).await?, None);
    assert_eq!((store.token_of(forever.id.as_str()).await?, store.token_of("").await?), (None, None));
    let again = store.revoke_token(&forever.id).await;
    assert!(matches!(again, Err(Error::Missing(_))), "{again:?}");
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.tokens().await?, [short, operator]);
    assert_eq!(kinds(&store).await?, ["token.created", "token.created", "token.created", "token.revoked"]);
    Ok(())
}
