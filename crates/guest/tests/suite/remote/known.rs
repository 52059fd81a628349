//! Whose guest it is: nobody's, until it is told, and then for ever.

use sandbar_guest::protocol::{BindRequest, HelloRequest, ListRequest, ProbeRequest, StartRequest};
use tonic::Code;

use super::house::{Identity, Remote};
use crate::support::{Follower, Guest, Outcome, code, code_of};

pub(crate) async fn is_told_once(born: Guest) -> Outcome {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    let mut client = remote.connect(&known).await?;
    assert_eq!(client.hello(HelloRequest {}).await?.into_inner().sandbox_id, "");
    let start =
        StartRequest { process_id: "p".into(), argv: vec!["true".into()], cwd: "/".into(), ..Default::default() };
    let refused = client.start(start.clone()).await.err().ok_or("it ran for nobody")?;
    assert_eq!((refused.code(), code(&refused)), (Code::FailedPrecondition, "wrong_state"));
    assert!(refused.message().contains("Bind"), "{}", refused.message());
    assert_eq!(code_of(client.list(ListRequest {}).await), "wrong_state");
    assert_eq!(code_of(client.probe(ProbeRequest::default()).await), "wrong_state");
    assert_eq!(code_of(client.accept(tokio_stream::empty()).await), "wrong_state");
    assert_eq!(code_of(client.bind(BindRequest::default()).await), "bad_request");

    let bind = |id: &str| BindRequest { sandbox_id: id.into() };
    client.bind(bind("sbx-one")).await?;
    // Again, also by a server that was started again.
    let mut again = remote.connect(&known).await?;
    again.bind(bind("sbx-one")).await?;
    let other = again.bind(bind("sbx-two")).await.err().ok_or("it is two sandboxes'")?;
    assert_eq!((other.code(), code(&other)), (Code::FailedPrecondition, "wrong_state"));
    assert_eq!(again.hello(HelloRequest {}).await?.into_inner().sandbox_id, "sbx-one");
    client.start(start).await?;

    // One that was made for its sandbox knows it.
    let mut born = born.client.clone();
    assert_eq!(born.hello(HelloRequest {}).await?.into_inner().sandbox_id, "sbx-test");
    assert_eq!(code_of(born.bind(bind("sbx-test")).await), "ok");
    assert_eq!(code_of(born.bind(bind("sbx-one")).await), "wrong_state");
    assert_eq!(code_of(born.accept(tokio_stream::empty()).await), "wrong_state");
    Ok(())
}

pub(crate) async fn gives_what_the_image_says(_: Guest) -> Outcome {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    let mut client = remote.connect(&known).await?;
    client.bind(BindRequest { sandbox_id: "sbx-one".into() }).await?;
    let script = "echo $OF_THE_IMAGE; env | grep -c SANDBAR_";
    let argv = ["sh", "-c", script].map(String::from).to_vec();
    client.start(StartRequest { process_id: "p".into(), argv, cwd: "/".into(), ..Default::default() }).await?;
    let ended = Follower::open(client, "p", 0).await?.until_end().await?;
    assert_eq!(ended.text(), "yes\n0\n");
    Ok(())
}
