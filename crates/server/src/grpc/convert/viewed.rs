//! What a viewer of a terminal is told.

use bytes::Bytes;
use sandbar_api::{TerminalFrame, TerminalSize};

use super::{super::proto, process};
use proto::attach_event::Event;

pub(in crate::grpc) fn output(end: u64, data: Bytes) -> proto::AttachEvent {
    proto::AttachEvent { event: Some(Event::Output(proto::AttachOutput { end, data })) }
}

pub(in crate::grpc) fn frame(frame: TerminalFrame) -> proto::AttachEvent {
    let event = match frame {
        TerminalFrame::Attached { process, offset, size, control, controller, input } => {
            let process = process.into();
            Event::Attached(proto::AttachAttached { process, offset, size: window(size), control, controller, input })
        }
        TerminalFrame::Screen { offset, size, data } => {
            Event::Screen(proto::AttachScreen { offset, size: window(size), data })
        }
        TerminalFrame::Resized { offset, size } => Event::Resized(proto::AttachResized { offset, size: window(size) }),
        TerminalFrame::Control { held, controller } => Event::Control(proto::AttachControl { held, controller }),
        TerminalFrame::Taken { input } => Event::Taken(proto::AttachTaken { input }),
        TerminalFrame::Skipped { from, to } => {
            Event::Skipped(proto::AttachSkipped { from_offset: from, to_offset: to })
        }
        TerminalFrame::Exit { process: ended } => Event::Exit(process(*ended)),
        TerminalFrame::Error { problem } => Event::Error(proto::Problem {
            code: problem.code.as_str().to_owned(),
            detail: problem.detail,
            fix: problem.fix,
        }),
    };
    proto::AttachEvent { event: Some(event) }
}

fn window(size: TerminalSize) -> Option<proto::TerminalSize> {
    Some(proto::TerminalSize { cols: size.cols.into(), rows: size.rows.into() })
}
