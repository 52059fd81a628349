//! Queries of programs are answered by the server, once, and only while they are young.

use super::{super::soon, *};
use crate::terminals::MOST_SCREENS;

/// What was typed as answers, and for which offset.
fn answers(terminal: &Terminal) -> Vec<(u64, Vec<u8>)> {
    let writes = terminal.guest.play(terminal.id()).map(|play| play.hand.writes).unwrap_or_default();
    writes.into_iter().filter_map(|write| Some((write.answers_output?, write.data.to_vec()))).collect()
}

async fn answered(terminal: &Terminal, count: usize) -> Result<Vec<(u64, Vec<u8>)>, String> {
    soon(|| async { Some(answers(terminal)).filter(|answers| answers.len() >= count) }).await
}

#[tokio::test]
async fn a_query_is_answered_once_however_many_look() -> Tested {
    let mut terminal = Terminal::start().await?;
    let mut viewers = vec![];
    for _ in 0..3 {
        viewers.push(terminal.attach(AttachAsk::default()).await?);
    }
    let first = terminal.print(b"ab\x1b[6n").await?;
    assert_eq!(answered(&terminal, 1).await?, [(first, b"\x1b[1;3R".to_vec())]);
    let second = terminal.print(b"\x1b[").await?;
    let third = terminal.print(b"5n").await?;
    assert_eq!(answered(&terminal, 2).await?[1], (third, b"\x1b[0n".to_vec()));
    assert!(second < third);
    for viewer in &mut viewers {
        let seen = until(viewer, |seen| seen.end == third).await?;
        assert_eq!(seen.text, b"ab", "no viewer's terminal is asked");
    }
    // Looks and restarts read the same output again and answer nothing.
    terminal.bed.engine.screen("a", terminal.id()).await?;
    terminal.bed.restart().await?;
    terminal.bed.engine.screen("a", terminal.id()).await?;
    let fourth = terminal.print(b"c\x1b[6n").await?;
    let all = answered(&terminal, 3).await?;
    assert_eq!((all.len(), &all[2]), (3, &(fourth, b"\x1b[1;4R".to_vec())));
    assert!(terminal.guest.play(terminal.id()).is_some_and(|play| play.tty.typed.is_empty()), "it is nobody's input");
    Ok(())
}

#[tokio::test]
async fn an_old_query_is_not_answered() -> Tested {
    let terminal = Terminal::start().await?;
    let hour_ago = chrono::Utc::now().timestamp_millis() - 3_600_000;
    terminal.guest.change(terminal.id(), |play| play.hand.at_ms = Some(hour_ago));
    terminal.print(b"\x1b[6n").await?;
    terminal.guest.change(terminal.id(), |play| play.hand.at_ms = None);
    let young = terminal.print(b"\x1b[5n").await?;
    assert_eq!(answered(&terminal, 1).await?, [(young, b"\x1b[0n".to_vec())]);
    Ok(())
}

#[tokio::test]
async fn queries_of_many_terminals_are_answered_with_few_screens() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut processes = vec![];
    for _ in 0..MOST_SCREENS + 4 {
        let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
        processes.push(bed.engine.start_process("a", request).await?);
    }
    let guest = bed.provider.get(&processes[0].sandbox).ok_or("no sandbox")?.guest.clone();
    for (round, row) in [(1, "\r\n"), (2, "\r\n")] {
        for process in &processes {
            guest.write(process.id.as_str(), format!("{row}\x1b[6n").as_bytes());
        }
        for process in &processes {
            let done = || async {
                let writes = guest.play(process.id.as_str())?.hand.writes;
                (writes.len() == round).then(|| writes[round - 1].data.clone())
            };
            // The second answer needs the screen that the first one left.
            assert_eq!(soon(done).await?, format!("\x1b[{};1R", round + 1).as_bytes());
        }
    }
    let checkpoint = |process: &sandbar_api::Process| bed.home.join("output").join(process.id.as_str()).join("screen");
    assert!(processes.iter().any(|process| checkpoint(process).exists()), "what was given up was kept");
    Ok(())
}
