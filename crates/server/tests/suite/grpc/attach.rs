//! Attached terminals.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    grpc::api::{
        AttachEvent, AttachInput, AttachOpen, AttachRelease, AttachRequest, AttachTake, Control, Process,
        StartProcessRequest, TerminalSize, attach_event::Event, attach_request::Message,
        processes_client::ProcessesClient, terminals_client::TerminalsClient,
    },
    grpc::channel,
    grpc::next,
    grpc::processes::command,
    grpc::told,
    support::Bench,
};

pub(crate) struct Viewer {
    say: mpsc::Sender<AttachRequest>,
    told: Streaming<AttachEvent>,
    output: Vec<u8>,
    end: u64,
    typed: u64,
}

pub(crate) async fn attach(channel: &Channel, open: AttachOpen) -> Result<Viewer, Status> {
    let (say, said) = mpsc::channel(8);
    say.send(AttachRequest { message: Some(Message::Open(open)) }).await.unwrap();
    let told = TerminalsClient::new(channel.clone()).attach(ReceiverStream::new(said)).await?.into_inner();
    Ok(Viewer { say, told, output: vec![], end: 0, typed: 0 })
}

impl Viewer {
    pub(crate) async fn say(&self, message: Message) {
        self.say.send(AttachRequest { message: Some(message) }).await.unwrap();
    }

    async fn keys(&mut self, keys: &str) {
        self.say(Message::Input(AttachInput { offset: self.typed, data: keys.to_owned().into() })).await;
        self.typed += keys.len() as u64;
    }

    /// The next event that is no output.
    async fn event(&mut self) -> Event {
        loop {
            match next(&mut self.told).await.event.unwrap() {
                Event::Output(output) => {
                    assert!(output.end >= self.end);
                    self.end = output.end;
                    self.output.extend_from_slice(&output.data);
                }
                event => return event,
            }
        }
    }

    async fn until(&mut self, mut found: impl FnMut(&Event) -> bool) -> Event {
        loop {
            let event = self.event().await;
            if found(&event) {
                return event;
            }
        }
    }

    async fn shows(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.output).contains(text) {
            match next(&mut self.told).await.event.unwrap() {
                Event::Output(output) => {
                    self.end = output.end;
                    self.output.extend_from_slice(&output.data);
                }
                Event::Screen(screen) => self.output.extend_from_slice(screen.data.as_bytes()),
                Event::Exit(_) => panic!("{}", String::from_utf8_lossy(&self.output)),
                _ => {}
            }
        }
    }

    pub(crate) async fn ends(&mut self) -> Result<(), Status> {
        crate::grpc::end(&mut self.told).await
    }
}

async fn terminal(channel: &Channel, script: &str) -> Process {
    let size = Some(TerminalSize { cols: 80, rows: 24 });
    let request = StartProcessRequest { terminal: size, ..command(script) };
    ProcessesClient::new(channel.clone()).start(request).await.unwrap().into_inner()
}

fn open(process: &Process, control: Control) -> AttachOpen {
    let (sandbox, process) = ("box".to_owned(), process.id.clone());
    AttachOpen { sandbox, process, raw: true, control: control.into(), ..AttachOpen::default() }
}

pub(crate) async fn two(bench: &Bench) {
    let channel = channel(bench).await;
    let process =
        terminal(&channel, "stty -echo; echo ready; while read -r line; do echo \"got <$line>\"; done; exit 5").await;
    let size = Some(TerminalSize { cols: 100, rows: 40 });
    let wanted = AttachOpen { size, writer: Some("one".to_owned()), ..open(&process, Control::Free) };
    let mut one = attach(&channel, wanted).await.unwrap();
    let Event::Attached(attached) = one.event().await else { panic!("not attached first") };
    assert_eq!((attached.control, attached.controller.as_deref(), attached.input), (true, Some("socket"), 0));
    assert_eq!(attached.process, process.id);
    one.shows("ready").await;
    one.keys("one\n").await;
    one.shows("got <one>").await;

    let mut two = attach(&channel, open(&process, Control::Free)).await.unwrap();
    let Event::Attached(attached) = two.event().await else { panic!("not attached first") };
    assert!(!attached.control);
    assert_eq!(attached.size, size, "the terminal has the size of its controller's window");
    let Event::Screen(screen) = two.event().await else { panic!("no screen") };
    assert!(screen.data.contains("got <one>"), "{}", screen.data);
    two.keys("no\n").await;
    two.typed = 0;
    let Event::Error(problem) = two.until(|event| matches!(event, Event::Error(_))).await else { panic!() };
    assert_eq!(problem.code, "not_controller");
    assert!(!problem.detail.is_empty() && !problem.fix.is_empty());

    two.say(Message::Resize(TerminalSize { cols: 60, rows: 20 })).await;
    two.say(Message::Take(AttachTake {})).await;
    let held = |want: bool| move |event: &Event| matches!(event, Event::Control(control) if control.held == want);
    two.until(held(true)).await;
    one.until(held(false)).await;
    let resized =
        |event: &Event| matches!(event, Event::Resized(to) if to.size == Some(TerminalSize { cols: 60, rows: 20 }));
    one.until(resized).await;
    two.keys("two\n").await;
    one.shows("got <two>").await;
    two.shows("got <two>").await;
    two.say(Message::Release(AttachRelease {})).await;
    one.until(|event| matches!(event, Event::Control(control) if control.controller.is_none())).await;
    one.say(Message::Take(AttachTake {})).await;
    one.until(held(true)).await;
    // One that has said all still looks on.
    two.say = mpsc::channel(1).0;
    one.keys("\u{4}").await;
    for viewer in [&mut one, &mut two] {
        let Event::Exit(exit) = viewer.until(|event| matches!(event, Event::Exit(_))).await else { panic!() };
        assert_eq!(exit.exit.unwrap().code, 5);
        viewer.ends().await.unwrap();
    }
}

pub(crate) async fn resumed(bench: &Bench) {
    let channel = channel(bench).await;
    let process = terminal(&channel, "stty -echo; echo ready; while read -r line; do echo \"got <$line>\"; done").await;
    let wanted =
        |from_offset| AttachOpen { writer: Some("me".to_owned()), from_offset, ..open(&process, Control::Free) };
    let mut first = attach(&channel, wanted(None)).await.unwrap();
    first.shows("ready").await;
    first.keys("one\n").await;
    first.shows("got <one>").await;
    let (end, typed) = (first.end, first.typed);
    drop(first);
    let mut second = attach(&channel, wanted(Some(end))).await.unwrap();
    let Event::Attached(attached) = second.event().await else { panic!("not attached first") };
    assert_eq!((attached.control, attached.offset, attached.input), (true, end, typed));
    // What was typed already is not typed again.
    second.keys("one\n").await;
    second.keys("two\n").await;
    second.shows("got <two>").await;
    assert!(!String::from_utf8_lossy(&second.output).contains("one"), "{:?}", second.output);
}

pub(crate) async fn refused(bench: &Bench) {
    let channel = channel(bench).await;
    let plain = ProcessesClient::new(channel.clone()).start(command("sleep 100")).await.unwrap().into_inner();
    let process = terminal(&channel, "sleep 100").await;
    let nowhere = AttachOpen { sandbox: "nobody".to_owned(), ..open(&process, Control::View) };
    let beyond = AttachOpen { from_offset: Some(99), ..open(&process, Control::View) };
    let writer = AttachOpen { writer: Some("a b".to_owned()), ..open(&process, Control::View) };
    let sized = AttachOpen { size: Some(TerminalSize { cols: 0, rows: 0 }), ..open(&process, Control::View) };
    for (wanted, code, name) in [
        (open(&plain, Control::View), Code::FailedPrecondition, "no_terminal"),
        (nowhere, Code::NotFound, "unknown_sandbox"),
        (beyond, Code::OutOfRange, "offset_beyond"),
        (writer, Code::InvalidArgument, "bad_request"),
        (sized, Code::InvalidArgument, "bad_request"),
    ] {
        let refused = attach(&channel, wanted).await.err().expect(name);
        assert_eq!(told(&refused), (code, name.to_owned()));
    }
    let mut client = TerminalsClient::new(channel.clone());
    for first in [None, Some(Message::Take(AttachTake {}))] {
        let said = tokio_stream::iter([AttachRequest { message: first }]);
        assert_eq!(client.attach(said).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let nothing = client.attach(tokio_stream::iter(Vec::<AttachRequest>::new())).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    for (message, code) in [
        (Message::Open(open(&process, Control::View)), Code::InvalidArgument),
        (Message::Resize(TerminalSize { cols: 70_000, rows: 1 }), Code::InvalidArgument),
        (Message::Input(AttachInput { offset: 0, data: vec![b'x'; (64 << 10) + 1].into() }), Code::ResourceExhausted),
    ] {
        let mut viewer = attach(&channel, open(&process, Control::Free)).await.unwrap();
        viewer.say(message).await;
        assert_eq!(viewer.ends().await.unwrap_err().code(), code);
    }
}
