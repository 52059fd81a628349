//! The service `Processes`.

use futures_util::{StreamExt as _, stream};
use sandbar_api::{Process as ApiProcess, StartProcess};
use sandbar_engine::OutputItem;
use tonic::{Request, Response, Status};

use super::{
    Answers, Desk,
    convert::{chunk, duration, known, only, process, restart, size, sized},
    proto::{
        ExecEvent, ExecRequest, GetProcessRequest, InputReply, InputRequest, ListProcessesRequest, OutputEvent,
        OutputRequest, Process, ResizeReply, ResizeRequest, SignalReply, SignalRequest, StartProcessRequest,
        exec_event, output_event, processes_server::Processes,
    },
    status,
};
use crate::routes::{exec, output::Window};

type Answer<T> = Result<Response<T>, Status>;

fn started(begun: ApiProcess) -> ExecEvent {
    ExecEvent { event: Some(exec_event::Event::Started(process(begun))) }
}

fn ran(item: OutputItem) -> ExecEvent {
    let event = match item {
        OutputItem::Chunk(piece) => exec_event::Event::Output(chunk(piece)),
        OutputItem::Exit(ended) => exec_event::Event::Exit(process(ended)),
    };
    ExecEvent { event: Some(event) }
}

fn wrote(item: OutputItem) -> OutputEvent {
    let event = match item {
        OutputItem::Chunk(piece) => output_event::Event::Output(chunk(piece)),
        OutputItem::Exit(ended) => output_event::Event::Exit(process(ended)),
    };
    OutputEvent { event: Some(event) }
}

#[tonic::async_trait]
impl Processes for Desk {
    type ExecStream = Answers<ExecEvent>;

    async fn exec(&self, request: Request<ExecRequest>) -> Answer<Self::ExecStream> {
        let ExecRequest { sandbox, argv, env, cwd, timeout, stdin } = request.into_inner();
        let command = StartProcess { argv, env, cwd, timeout: duration(timeout)?, ..StartProcess::default() };
        let (begun, items) = exec::live(&self.0, sandbox, command, stdin).await.map_err(status::of)?;
        let events = items.map(|item| item.map(ran).map_err(status::of));
        Ok(Response::new(Box::pin(stream::iter([Ok(started(begun))]).chain(events))))
    }

    async fn start(&self, request: Request<StartProcessRequest>) -> Answer<Process> {
        let asked = request.into_inner();
        let command = StartProcess {
            restart: restart(known(asked.restart, "restart")?),
            argv: asked.argv,
            env: asked.env,
            cwd: asked.cwd,
            terminal: asked.terminal.map(size).transpose()?,
            stdin: asked.stdin,
            timeout: duration(asked.timeout)?,
        };
        let begun = self.engine().start_process(&asked.sandbox, command).await.map_err(status::of)?;
        Ok(Response::new(process(begun)))
    }

    async fn get(&self, request: Request<GetProcessRequest>) -> Answer<Process> {
        let GetProcessRequest { sandbox, process: of } = request.into_inner();
        let found = self.engine().process(&sandbox, &of).await.map_err(status::of)?;
        Ok(Response::new(process(found)))
    }

    type ListStream = Answers<Process>;

    async fn list(&self, request: Request<ListProcessesRequest>) -> Answer<Self::ListStream> {
        let found = self.engine().processes(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(Box::pin(stream::iter(found).map(|found| Ok(process(found))))))
    }

    type OutputStream = Answers<OutputEvent>;

    async fn output(&self, request: Request<OutputRequest>) -> Answer<Self::OutputStream> {
        let OutputRequest { sandbox, process, from_offset, follow, limit, stream } = request.into_inner();
        let wanted = only(known(stream, "stream")?);
        let reader = self.engine().output(&sandbox, &process, from_offset).await.map_err(status::of)?;
        let window = Window::new(reader, follow, limit, wanted);
        let events = stream::unfold(window, async |mut window| {
            let item = window.next().await.transpose()?;
            Some((item.map(wrote).map_err(status::of), window))
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn input(&self, request: Request<InputRequest>) -> Answer<InputReply> {
        let InputRequest { sandbox, process, offset, data, eof } = request.into_inner();
        let offset = self.engine().write_input(&sandbox, &process, offset, data, eof).await.map_err(status::of)?;
        Ok(Response::new(InputReply { offset }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Answer<SignalReply> {
        let SignalRequest { sandbox, process, signal } = request.into_inner();
        self.engine().signal(&sandbox, &process, &signal).await.map_err(status::of)?;
        Ok(Response::new(SignalReply {}))
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Answer<ResizeReply> {
        let ResizeRequest { sandbox, process, size } = request.into_inner();
        self.engine().resize(&sandbox, &process, sized(size)?).await.map_err(status::of)?;
        Ok(Response::new(ResizeReply {}))
    }
}
