//! What viewers type, once.

use bytes::Bytes;

use super::{super::soon, *};

fn typed(terminal: &Terminal) -> Vec<u8> {
    terminal.guest.play(terminal.id()).map(|play| play.tty.typed).unwrap_or_default()
}

async fn taken(attached: &mut Attached, want: u64) -> Tested {
    let taken = |seen: &Seen| seen.last() == Some(&TerminalFrame::Taken { input: want });
    until(attached, taken).await.map(drop)
}

#[tokio::test]
async fn a_connection_that_breaks_types_nothing_twice() -> Tested {
    let terminal = Terminal::start().await?;
    let mut first = terminal.attach(taking(Control::Free, "laptop")).await?;
    first.keyboard.type_input(0, "ec".into()).await;
    first.keyboard.type_input(2, "ho ".into()).await;
    taken(&mut first, 5).await?;
    drop(first);
    let mut again = terminal.attach(taking(Control::Take, "laptop")).await?;
    let TerminalFrame::Attached { input, .. } = frame(&mut again).await? else { return Err("no".into()) };
    assert_eq!(input, 5);
    // The client does not know what arrived, and repeats.
    again.keyboard.type_input(2, Bytes::from_static(b"ho hi\xff\x00")).await;
    taken(&mut again, 9).await?;
    assert_eq!(typed(&terminal), b"echo hi\xff\x00");
    again.keyboard.type_input(20, "gap".into()).await;
    let seen = until(&mut again, |seen| !seen.frames.is_empty()).await?;
    assert!(matches!(seen.last(), Some(TerminalFrame::Error { problem }) if problem.code == Code::OffsetBeyond));
    // Another client counts for itself.
    let mut other = terminal.attach(taking(Control::Take, "phone")).await?;
    let TerminalFrame::Attached { input, .. } = frame(&mut other).await? else { return Err("no".into()) };
    assert_eq!(input, 0);
    other.keyboard.type_input(0, "!".into()).await;
    taken(&mut other, 1).await?;
    assert_eq!(typed(&terminal), b"echo hi\xff\x00!");
    Ok(())
}

#[tokio::test]
async fn a_program_that_does_not_read_holds_up_keys_alone() -> Tested {
    let terminal = Terminal::start().await?;
    let mut viewer = terminal.attach(taking(Control::Free, "w")).await?;
    until(&mut viewer, |seen| seen.frames.len() == 2).await?;
    terminal.guest.change(terminal.id(), |play| play.hand.deaf = true);
    let Attached { viewer: mut eyes, mut keyboard } = viewer;
    // As much as may wait, and then no more is taken from the viewer.
    let piece = Bytes::from(vec![b'k'; 16 << 10]);
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_millis(200), keyboard.type_input(sent, piece.clone())).await.is_ok() {
        sent += piece.len() as u64;
        assert!(sent <= 256 << 10, "{sent}");
    }
    assert!(sent >= 64 << 10, "{sent}");
    // It still sees, and may still give up control.
    terminal.print(b"still here").await?;
    let mut text = vec![];
    while text != b"still here" {
        match tokio::time::timeout(Duration::from_secs(300), eyes.next()).await?? {
            Some(Viewed::Output { data, .. }) => text.extend_from_slice(&data),
            other => return Err(format!("{other:?}").into()),
        }
    }
    keyboard.frame(ViewerFrame::Release {}).await;
    terminal.guest.change(terminal.id(), |play| play.hand.deaf = false);
    // What was on its way is typed; what waited behind is not any more.
    let first = soon(|| async { Some(typed(&terminal).len()).filter(|length| *length > 0) }).await?;
    assert_eq!(first, piece.len());
    let mut refused = 0;
    while refused < sent / piece.len() as u64 - 1 {
        match tokio::time::timeout(Duration::from_secs(300), eyes.next()).await?? {
            Some(Viewed::Frame(TerminalFrame::Error { problem })) if problem.code == Code::NotController => {
                refused += 1
            }
            Some(Viewed::Frame(TerminalFrame::Control { held: false, .. } | TerminalFrame::Taken { .. })) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    assert_eq!(typed(&terminal).len(), piece.len());
    Ok(())
}

#[tokio::test]
async fn what_is_typed_after_the_end_is_refused() -> Tested {
    let terminal = Terminal::start().await?;
    let mut viewer = terminal.attach(taking(Control::Free, "w")).await?;
    until(&mut viewer, |seen| seen.frames.len() == 2).await?;
    terminal.end().await?;
    soon(|| async {
        let live = terminal.bed.engine.write_input("a", terminal.id(), None, Bytes::new(), false).await;
        live.is_err().then_some(())
    })
    .await?;
    viewer.keyboard.type_input(0, "x".into()).await;
    let over = |seen: &Seen| {
        let refused = |frame: &TerminalFrame| matches!(frame, TerminalFrame::Error { problem } if problem.code == Code::ProcessOver);
        seen.frames.iter().any(refused) || matches!(seen.last(), Some(TerminalFrame::Exit { .. }))
    };
    until(&mut viewer, over).await?;
    assert_eq!(typed(&terminal), b"");
    Ok(())
}
