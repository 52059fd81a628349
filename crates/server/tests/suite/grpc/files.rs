//! Files up and down.

use std::{fs, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, transport::Channel};

use crate::{
    grpc::api::{
        EntryKind, ListFilesRequest, ReadRequest, RemoveRequest, SearchRequest, StatRequest, WriteCommit, WriteOpen,
        WriteRequest, files_client::FilesClient, read_reply, search_event, write_request::Message,
    },
    grpc::attach,
    grpc::channel,
    grpc::told,
    grpc::until,
    support::Bench,
};

type Client = FilesClient<Channel>;

fn say(message: Message) -> WriteRequest {
    WriteRequest { message: Some(message) }
}

fn open(sandbox: &str, path: &str, mode: Option<u32>) -> WriteRequest {
    say(Message::Open(WriteOpen { sandbox: sandbox.to_owned(), path: path.to_owned(), mode }))
}

fn data(bytes: impl Into<Bytes>) -> WriteRequest {
    say(Message::Data(bytes.into()))
}

fn commit() -> WriteRequest {
    say(Message::Commit(WriteCommit {}))
}

fn at(bench: &Bench, name: &str) -> String {
    bench.directory.path().join("files").join(name).display().to_string()
}

async fn read(client: &mut Client, path: &str, offset: u64, length: Option<u64>) -> (u64, Vec<u8>) {
    let request = ReadRequest { sandbox: "box".to_owned(), path: path.to_owned(), offset, length };
    let mut replies = client.read(request).await.unwrap().into_inner();
    let first = replies.message().await.unwrap().unwrap().message.unwrap();
    let read_reply::Message::Entry(entry) = first else { panic!("no entry first") };
    let mut bytes = vec![];
    while let Some(reply) = replies.message().await.unwrap() {
        let Some(read_reply::Message::Data(data)) = reply.message else { panic!("an entry twice") };
        bytes.extend_from_slice(&data);
    }
    (entry.size, bytes)
}

pub(crate) async fn there_and_back(bench: &Bench) {
    const SIZE: usize = 32 << 20;
    let mut client = FilesClient::new(channel(bench).await);
    let path = at(bench, "grpc-large");
    let large: Bytes = (0..SIZE).map(|at| (at / 251 % 256) as u8).collect::<Vec<_>>().into();
    let mut messages = vec![open("box", &path, Some(0o640))];
    messages.extend((0..SIZE).step_by(1 << 20).map(|from| data(large.slice(from..from + (1 << 20)))));
    messages.push(commit());
    let written = client.write(tokio_stream::iter(messages)).await.unwrap().into_inner();
    assert_eq!(written.size, SIZE as u64);
    let (size, bytes) = read(&mut client, &path, 0, None).await;
    assert!(size == SIZE as u64 && bytes == large, "{size} {}", bytes.len());
    let (_, part) = read(&mut client, &path, 1000, Some(500)).await;
    assert_eq!(part, large.slice(1000..1500));
    assert_eq!(read(&mut client, &path, SIZE as u64 - 3, Some(500)).await.1, large.slice(SIZE - 3..));
    assert_eq!(read(&mut client, &path, SIZE as u64, None).await.1, b"");
    let beyond = ReadRequest { sandbox: "box".into(), path: path.clone(), offset: SIZE as u64 + 1, length: None };
    assert_eq!(told(&client.read(beyond).await.unwrap_err()), (Code::OutOfRange, "offset_beyond".to_owned()));
    assert!(!read(&mut client, "/proc/self/stat", 0, None).await.1.is_empty(), "what says 0 and holds something");

    let stat = StatRequest { sandbox: "box".into(), path: path.clone() };
    let entry = client.stat(stat.clone()).await.unwrap().into_inner();
    assert_eq!((entry.kind(), entry.size, entry.mode), (EntryKind::File, SIZE as u64, 0o640));
    assert!(entry.modified_at.is_some());
    std::os::unix::fs::symlink("grpc-large", at(bench, "grpc-link")).unwrap();
    let mut listed =
        client.list(ListFilesRequest { sandbox: "box".into(), path: at(bench, "") }).await.unwrap().into_inner();
    let mut found = vec![];
    while let Some(entry) = listed.message().await.unwrap() {
        found.push((entry.name.clone(), entry.kind(), entry.target));
    }
    let large = ("grpc-large".to_owned(), EntryKind::File, None);
    let link = ("grpc-link".to_owned(), EntryKind::Symlink, Some("grpc-large".to_owned()));
    assert!(found.contains(&large) && found.contains(&link), "{found:?}");
    for name in ["grpc-link", "grpc-large"] {
        client.remove(RemoveRequest { sandbox: "box".into(), path: at(bench, name), recursive: false }).await.unwrap();
    }
    assert_eq!(told(&client.stat(stat).await.unwrap_err()), (Code::NotFound, "unknown_file".to_owned()));
}

pub(crate) async fn searched(bench: &Bench) {
    let mut client = FilesClient::new(channel(bench).await);
    let place = at(bench, "grpc-search");
    fs::create_dir(&place).unwrap();
    fs::write(format!("{place}/a.txt"), "alpha\nneedle\nomega\n").unwrap();
    fs::write(format!("{place}/b.rs"), "needle\n").unwrap();
    let asked = |change: fn(&mut SearchRequest)| {
        let mut request = SearchRequest { sandbox: "box".into(), path: place.clone(), ..Default::default() };
        change(&mut request);
        request
    };
    let mut found = async |request| {
        let mut events = client.search(request).await?.into_inner();
        let mut hits = vec![];
        loop {
            match crate::grpc::next(&mut events).await.event.unwrap() {
                search_event::Event::Hit(hit) => hits.push((hit.path, hit.line, hit.text)),
                search_event::Event::End(end) => return Ok::<_, tonic::Status>((hits, end.more)),
            }
        }
    };
    let (mut names, more) = found(asked(|_| {})).await.unwrap();
    names.sort();
    assert_eq!(names.iter().map(|(path, ..)| path.as_str()).collect::<Vec<_>>(), ["a.txt", "b.rs"]);
    assert!(!more);
    let lines = asked(|wanted| (wanted.names, wanted.pattern) = ("*.txt".into(), Some("^need".into())));
    assert_eq!(found(lines).await.unwrap().0, [("a.txt".to_owned(), 2, Bytes::from_static(b"needle"))]);
    let (first, more) = found(asked(|wanted| wanted.most = Some(1))).await.unwrap();
    assert_eq!((first.len(), more), (1, true));
    for bad in [asked(|wanted| wanted.pattern = Some("(".into())), asked(|wanted| wanted.most = Some(0))] {
        assert_eq!(found(bad).await.unwrap_err().code(), Code::InvalidArgument);
    }
    fs::remove_dir_all(&place).unwrap();
}

pub(crate) async fn whole(bench: &Bench) {
    let mut client = FilesClient::new(channel(bench).await);
    let path = at(bench, "grpc-whole");
    fs::write(&path, "before").unwrap();
    let entries = || fs::read_dir(at(bench, "")).unwrap().count();
    let before = entries();
    for (messages, code, name) in [
        (vec![open("box", &path, None), data("half")], Code::InvalidArgument, "bad_request"),
        (vec![open("box", &path, None), data("half"), open("box", &path, None)], Code::InvalidArgument, "bad_request"),
        (vec![data("half"), commit()], Code::InvalidArgument, "bad_request"),
        (vec![], Code::InvalidArgument, "bad_request"),
        (vec![open("box", &path, Some(0o10000)), commit()], Code::InvalidArgument, "bad_request"),
        (vec![open("nobody", &path, None), data("x"), commit()], Code::NotFound, "unknown_sandbox"),
        (vec![open("box", "/../x", None), data("x"), commit()], Code::InvalidArgument, "path_outside"),
        (vec![open("box", "/proc/none/x", None), data("x"), commit()], Code::NotFound, "unknown_file"),
        (vec![open("small", &path, None), data(vec![0; 200_000]), commit()], Code::ResourceExhausted, "too_large"),
    ] {
        let refused = client.write(tokio_stream::iter(messages)).await.unwrap_err();
        assert_eq!(told(&refused), (code, name.to_owned()), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
    // One message holds 4 MiB at most, and says so.
    let huge = vec![open("box", &path, None), data(vec![0; 5 << 20]), commit()];
    let refused = client.write(tokio_stream::iter(huge)).await.unwrap_err();
    assert_eq!(told(&refused), (Code::ResourceExhausted, "too_large".to_owned()), "{refused:?}");
    let first = open("box", &"x".repeat(5 << 20), None);
    let refused = client.write(tokio_stream::iter([first])).await.unwrap_err();
    assert_eq!(told(&refused), (Code::ResourceExhausted, "too_large".to_owned()), "{refused:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    // A call that is cancelled has not committed.
    let (say, said) = mpsc::channel(8);
    for message in [open("box", &path, None), data("half")] {
        say.send(message).await.unwrap();
    }
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.write(ReceiverStream::new(said)).await });
    until("the upload", async || entries() > before).await;
    call.abort();
    drop(say);
    until("its end", async || entries() == before).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    let empty = vec![open("box", &path, None), commit()];
    assert_eq!(client.write(tokio_stream::iter(empty)).await.unwrap().into_inner().size, 0);
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    fs::remove_file(&path).unwrap();
}

/// All calls of a program share one connection: what a program inside does not read must not stop the others.
pub(crate) async fn waiting(bench: &Bench) {
    use crate::grpc::api::{AttachInput, AttachOpen, Control, attach_request, processes_client::ProcessesClient};
    let channel = channel(bench).await;
    let mut processes = ProcessesClient::new(channel.clone());
    let terminal = Some(crate::grpc::api::TerminalSize { cols: 80, rows: 24 });
    let request = crate::grpc::api::StartProcessRequest {
        terminal,
        ..crate::grpc::processes::command("stty raw -echo; sleep 100")
    };
    let process = processes.start(request).await.unwrap().into_inner().id;
    let (sandbox, control) = ("box".to_owned(), Control::Free.into());
    let viewer =
        attach::attach(&channel, AttachOpen { sandbox, process, control, ..Default::default() }).await.unwrap();
    let typing = async {
        for offset in (0..).step_by(60_000) {
            let input = AttachInput { offset, data: vec![b'x'; 60_000].into() };
            viewer.say(attach_request::Message::Input(input)).await;
        }
    };
    let stuck = tokio::time::timeout(Duration::from_secs(2), typing).await;
    assert!(stuck.is_err(), "somebody reads it after all");
    let mut client = FilesClient::new(channel);
    let path = at(bench, "grpc-meanwhile");
    let messages = vec![open("box", &path, None), data(vec![b'y'; 2 << 20]), commit()];
    let written = tokio::time::timeout(crate::grpc::SOON, client.write(tokio_stream::iter(messages))).await;
    assert_eq!(written.expect("it is not held up").unwrap().into_inner().size, 2 << 20);
    fs::remove_file(&path).unwrap();
}
