//! Who looks and who controls.

use super::*;
use crate::terminals::MOST_SEATS;

fn told(held: bool, controller: Option<&str>) -> TerminalFrame {
    TerminalFrame::Control { held, controller: controller.map(str::to_owned) }
}

async fn started(attached: &mut Attached) -> Any<(bool, Option<String>)> {
    let seen = until(attached, |seen| seen.frames.len() == 2).await?;
    match &seen.frames[0] {
        TerminalFrame::Attached { control, controller, .. } => Ok((*control, controller.clone())),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::test]
async fn one_controls_until_another_takes_over() -> Tested {
    let terminal = Terminal::start().await?;
    let mut first = terminal.attach_as("first", taking(Control::Free, "w1")).await?;
    assert_eq!(started(&mut first).await?, (true, Some("first".into())));
    let mut second = terminal.attach_as("second", taking(Control::Free, "w2")).await?;
    assert_eq!(started(&mut second).await?, (false, Some("first".into())));
    let mut watching = terminal.attach_as("third", raw()).await?;
    assert_eq!(started(&mut watching).await?, (false, Some("first".into())));
    second.keyboard.type_input(0, "x".into()).await;
    assert_eq!(refused(&mut second).await?, Code::NotController);
    second.keyboard.frame(ViewerFrame::Take {}).await;
    assert_eq!(frame(&mut first).await?, told(false, Some("second")));
    assert_eq!(frame(&mut watching).await?, told(false, Some("second")));
    let seen = until(&mut second, |seen| seen.frames.len() == 2).await?;
    assert!(seen.frames.contains(&told(true, Some("second"))), "{:?}", seen.frames);
    assert!(seen.frames.contains(&TerminalFrame::Taken { input: 0 }), "{:?}", seen.frames);
    first.keyboard.type_input(0, "lost".into()).await;
    assert_eq!(refused(&mut first).await?, Code::NotController);
    // Somebody else's release changes nothing.
    first.keyboard.frame(ViewerFrame::Release {}).await;
    second.keyboard.frame(ViewerFrame::Release {}).await;
    assert_eq!(frame(&mut first).await?, told(false, None));
    assert_eq!(frame(&mut second).await?, told(false, None));
    first.keyboard.frame(ViewerFrame::Take {}).await;
    assert_eq!(frame(&mut second).await?, told(false, Some("first")));
    drop(first);
    assert_eq!(frame(&mut second).await?, told(false, None), "who leaves controls no longer");
    let mut third = terminal.attach_as("third", taking(Control::Take, "w3")).await?;
    assert_eq!(started(&mut third).await?, (true, Some("third".into())));
    assert_eq!(terminal.guest.play(terminal.id()).ok_or("no play")?.tty.typed, b"");
    Ok(())
}

#[tokio::test]
async fn a_client_that_comes_back_has_its_control_again() -> Tested {
    let terminal = Terminal::start().await?;
    let mut before = terminal.attach_as("one", taking(Control::Take, "w")).await?;
    assert!(started(&mut before).await?.0);
    let mut other = terminal.attach_as("two", taking(Control::Free, "w")).await?;
    assert!(!started(&mut other).await?.0, "the name of a writer is no key");
    let mut again = terminal.attach_as("one", taking(Control::Free, "w")).await?;
    assert!(started(&mut again).await?.0);
    assert_eq!(frame(&mut before).await?, told(false, Some("one")));
    Ok(())
}

#[tokio::test]
async fn a_viewers_token_only_looks() -> Tested {
    let terminal = Terminal::start().await?;
    let viewer = Caller { owner: "token:v".into(), role: Role::Viewer, session: None };
    let attach = async |control| terminal.bed.engine.attach(&viewer, "a", terminal.id(), taking(control, "w")).await;
    for control in [Control::Free, Control::Take] {
        assert_eq!(code(attach(control).await.map(drop)), Some(Code::Forbidden));
    }
    let mut attached = attach(Control::View).await?;
    assert_eq!(started(&mut attached).await?, (false, None));
    attached.keyboard.frame(ViewerFrame::Take {}).await;
    assert_eq!(refused(&mut attached).await?, Code::Forbidden);
    attached.keyboard.type_input(0, "x".into()).await;
    assert_eq!(refused(&mut attached).await?, Code::NotController);
    Ok(())
}

#[tokio::test]
async fn the_terminal_has_its_controllers_size() -> Tested {
    let terminal = Terminal::start().await?;
    let size = |cols, rows| TerminalSize { cols, rows };
    let now = async || -> Any<TerminalSize> { Ok(terminal.bed.engine.screen("a", terminal.id()).await?.view.size) };
    let ask = AttachAsk { size: Some(size(30, 10)), ..taking(Control::Free, "w1") };
    let mut first = terminal.attach_as("first", ask).await?;
    assert_eq!(now().await?, size(30, 10));
    let seen = until(&mut first, |seen| seen.frames.len() == 2).await?;
    assert!(matches!(seen.frames[0], TerminalFrame::Attached { size: TerminalSize { cols: 30, rows: 10 }, .. }));
    let mut second = terminal.attach_as("second", AttachAsk { size: Some(size(50, 20)), ..raw() }).await?;
    assert_eq!(now().await?, size(30, 10), "who looks changes nothing");
    second.keyboard.frame(ViewerFrame::Resize { cols: 60, rows: 21 }).await;
    assert_eq!(now().await?, size(30, 10));
    for (cols, rows) in [(0, 10), (10, 0), (10_000, 10), (10, 10_000)] {
        first.keyboard.frame(ViewerFrame::Resize { cols, rows }).await;
        assert_eq!(refused(&mut first).await?, Code::BadRequest);
        assert_eq!(now().await?, size(30, 10));
    }
    first.keyboard.frame(ViewerFrame::Resize { cols: 31, rows: 11 }).await;
    assert_eq!(now().await?, size(31, 11));
    assert_eq!(frame(&mut first).await?, TerminalFrame::Resized { offset: 0, size: size(31, 11) });
    second.keyboard.frame(ViewerFrame::Take {}).await;
    assert_eq!(now().await?, size(60, 21));
    Ok(())
}

#[tokio::test]
async fn sizes_are_recorded_in_the_order_in_which_they_came_to_hold() -> Tested {
    let terminal = Terminal::start().await?;
    terminal.guest.change(terminal.id(), |play| play.hand.slow = true);
    let engine = &terminal.bed.engine;
    let resize = |cols| engine.resize("a", terminal.id(), TerminalSize { cols, rows: 9 });
    tokio::try_join!(resize(30), resize(60), resize(90))?;
    // Also one whose caller does not wait for it.
    let left = tokio::time::timeout(std::time::Duration::from_millis(10), resize(40)).await;
    assert!(left.is_err());
    let all =
        async || Some(engine.inner.store.terminal_sizes(&terminal.process.id).await.ok()?).filter(|all| all.len() == 5);
    let recorded = crate::tests::soon(all).await?;
    let held = terminal.guest.play(terminal.id()).ok_or("no play")?.hand.widths;
    let recorded: Vec<_> = recorded.iter().skip(1).map(|change| u32::from(change.size.cols)).collect();
    assert_eq!(recorded, held);
    Ok(())
}

#[tokio::test]
async fn seats_are_bounded_and_given_back() -> Tested {
    let terminal = Terminal::start().await?;
    let mut seats = vec![];
    for _ in 0..MOST_SEATS {
        seats.push(terminal.attach(AttachAsk { from: Some(0), ..raw() }).await?);
    }
    assert_eq!(code(terminal.attach(raw()).await.map(drop)), Some(Code::TooMany));
    seats.pop();
    super::super::soon(|| async { terminal.attach(raw()).await.ok().map(drop) }).await?;
    Ok(())
}
