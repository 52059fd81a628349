//! Who talks to whom: the server proves its key, the guest stays the one that was met.

use std::time::Instant;

use sandbar_guest::protocol::HelloRequest;
use sandbar_provider::{
    Guest,
    tls::{Carries, Error, bind},
};

use crate::support::{Outcome, Pod, id, soon, until};

async fn hello(guest: &Guest) -> Result<String, tonic::Status> {
    guest.clone().hello(HelloRequest {}).await.map(|reply| reply.into_inner().sandbox_id)
}

pub(crate) async fn the_server_is_known_by_its_key() -> Outcome {
    let pod = Pod::start()?;
    let refused = match pod.line().connect(2, Carries::Calls, None).await {
        Ok((guest, _)) => bind(&guest, &id(1)).await,
        Err(error) => Err(error),
    };
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    let (guest, _) = pod.connect().await?;
    assert_eq!(hello(&guest).await?, "", "nobody has bound it");
    Ok(())
}

pub(crate) async fn a_guest_is_bound_once() -> Outcome {
    let pod = Pod::start()?;
    let (guest, _) = pod.connect().await?;
    for _ in 0..2 {
        bind(&guest, &id(1)).await?;
        assert_eq!(hello(&guest).await?, id(1).as_str());
    }
    let (again, _) = pod.connect().await?;
    bind(&again, &id(1)).await?;
    match bind(&again, &id(2)).await {
        Err(Error::Taken(whose)) if whose == id(1).as_str() => Ok(()),
        other => Err(format!("bound to another: {other:?}").into()),
    }
}

pub(crate) async fn a_broken_connection_is_made_again() -> Outcome {
    let pod = Pod::start()?;
    let line = pod.line();
    let (guest, _) = line.connect(1, Carries::Calls, None).await?;
    bind(&guest, &id(1)).await?;
    line.cut();
    until("it answers again", async || hello(&guest).await.is_ok_and(|told| told == id(1).as_str())).await?;
    assert_eq!(line.dialled(), 2);
    Ok(())
}

pub(crate) async fn a_replaced_guest_is_noticed() -> Outcome {
    let mut pod = Pod::start()?;
    let line = pod.line();
    let (guest, met) = line.connect(1, Carries::Calls, None).await?;
    bind(&guest, &id(1)).await?;
    pod.replace()?;
    let (_, other) = soon("another guest is there", pod.connect()).await??;
    assert_ne!(met, other);
    let before = line.dialled();
    until("it was dialled again", async || {
        assert!(hello(&guest).await.is_err(), "another guest was talked to");
        line.dialled() > before + 1
    })
    .await?;
    let refused = bind(&guest, &id(1)).await;
    assert!(matches!(refused, Err(Error::Replaced)), "{refused:?}");
    let refused = pod.line().connect(1, Carries::Calls, Some(met)).await;
    assert!(matches!(refused, Err(Error::Replaced)), "{:?}", refused.err());
    let (guest, _) = pod.line().connect(1, Carries::Calls, Some(other)).await?;
    assert_eq!(hello(&guest).await?, "", "the control");
    Ok(())
}

pub(crate) async fn a_guest_that_says_nothing_is_noticed() -> Outcome {
    let pod = Pod::start()?;
    let (guest, _) = pod.connect().await?;
    bind(&guest, &id(1)).await?;
    pod.fall_silent()?;
    let began = Instant::now();
    assert!(hello(&guest).await.is_err());
    let took = began.elapsed().as_secs();
    assert!((5..=30).contains(&took), "noticed after {took} s");
    Ok(())
}
