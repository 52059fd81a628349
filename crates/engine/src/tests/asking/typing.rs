//! Answers that are typed once or not at all: two at once, a screen that has moved on, and servers that end in between.

use super::*;
use crate::store::fault::lost;

#[tokio::test]
async fn an_answer_never_lands_in_the_next_prompt() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    asking.print("\r\nFormat the disk? [y/N] ");
    let moved = asking.answer(&approval, "yes", None).await;
    assert_eq!(code(moved), Some(Code::ScreenMoved));
    assert_eq!(asking.typed(), "");
    assert_eq!(asking.closed(&approval).await?.reason.as_deref(), Some("moved_on"));
    let next = asking.open().await?;
    assert_eq!(next.question, "Format the disk? [y/N]");
    Ok(())
}

#[tokio::test]
async fn of_many_answers_at_once_one_is_typed() -> Tested {
    let asking = Asking::start().await?;
    for round in 0..5 {
        let before = asking.typed().len();
        let approval = asking.asks("\r\nGo on? [y/N] ").await?;
        let answers = (0..20).map(|number| {
            let (engine, approval) = (asking.bed.engine.clone(), approval.clone());
            let choice = if number % 2 == 0 { "yes" } else { "no" };
            tokio::spawn(async move { answer(&engine, &approval, choice, None).await })
        });
        let mut counted = vec![];
        for answered in answers.collect::<Vec<_>>() {
            match answered.await? {
                Ok(approval) => counted.extend(approval.answer.map(|answer| answer.choice)),
                Err(problem) => assert_eq!(problem.code, Code::ApprovalClosed),
            }
        }
        assert_eq!(counted.len(), 1, "round {round}");
        let keys = if counted[0] == "yes" { "y\r" } else { "N\r" };
        assert_eq!(asking.typed()[before..], *keys, "the winner's keys");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_dies_before_the_commit_has_typed_nothing() -> Tested {
    let mut asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    // As a server leaves it that ends in between.
    asking.guest.fail("stage", Some(Fault::Lost));
    assert_eq!(code(asking.answer(&approval, "yes", None).await), Some(Code::GuestUnreachable));
    asking.crash().await?;
    asking.guest.fail("stage", None);
    assert_eq!((asking.get(&approval).await?.state, asking.typed().as_str()), (ApprovalState::Open, ""));
    // Somebody else decides otherwise, and the keys of before are not typed.
    asking.answer(&approval, "no", None).await?;
    assert_eq!(asking.typed(), "N\r");
    Ok(())
}

#[tokio::test]
async fn what_counts_is_typed_once_whoever_dies_around_the_release() -> Tested {
    for (fault, typed_before) in [(Fault::Unreachable, ""), (Fault::Lost, "y\r")] {
        let mut asking = Asking::start().await?;
        let approval = asking.asks("Go on? [y/N] ").await?;
        asking.guest.fail("release", Some(fault));
        let answered = asking.answer(&approval, "yes", None).await?;
        assert_eq!((answered.state, answered.delivery), (ApprovalState::Answered, Some(Delivery::Pending)));
        assert_eq!(asking.typed(), typed_before, "{fault:?}");
        asking.crash().await?;
        assert_eq!(asking.get(&approval).await?.delivery, Some(Delivery::Pending));
        asking.guest.fail("release", None);
        assert_eq!(asking.settled(&approval).await?, Some(Delivery::Typed), "{fault:?}");
        assert_eq!((asking.typed().as_str(), asking.told("approval.typed").await?), ("y\r", 1), "{fault:?}");
        asking.bed.engine.shutdown().await;
        // It may look before the next server has wholly opened.
        let before = asking.looks();
        asking.crash().await?;
        asking.judged_since(before).await?;
        assert_eq!(asking.typed(), "y\r", "{fault:?}");
        assert_eq!(all(&asking.bed.engine, &[ApprovalState::Open]).await?, [], "it is not asked again");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_whose_commit_nobody_heard_of_is_found_out_about_and_typed() -> Tested {
    // The first reply that is lost is that of the commit; the others are those of who asks what became of it.
    for lost in [1, 3] {
        let asking = Asking::start().await?;
        let approval = asking.asks("Go on? [y/N] ").await?;
        lost::lose(lost);
        let answered = asking.answer(&approval, "yes", None).await?;
        assert_eq!(lost::left(), 0);
        assert_eq!((answered.state, answered.delivery), (ApprovalState::Answered, Some(Delivery::Typed)));
        assert_eq!((asking.typed().as_str(), asking.told("approval.typed").await?), ("y\r", 1));
        assert_eq!(code(asking.answer(&approval, "no", None).await), Some(Code::ApprovalClosed));
    }
    Ok(())
}

#[tokio::test]
async fn a_guest_that_comes_back_types_what_waits_without_a_restart() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    asking.guest.fail("release", Some(Fault::Unreachable));
    asking.answer(&approval, "yes", None).await?;
    asking.guest.fail("release", None);
    assert_eq!(asking.settled(&approval).await?, Some(Delivery::Typed));
    assert_eq!(asking.typed(), "y\r");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_typed_any_more_is_refused_and_asked_again_if_it_stands() -> Tested {
    let mut asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    asking.guest.fail("release", Some(Fault::Unreachable));
    asking.answer(&approval, "yes", None).await?;
    asking.print("\r\nReally? [y/N] ");
    asking.guest.fail("release", None);
    assert_eq!(asking.settled(&approval).await?, Some(Delivery::Refused));
    assert_eq!((asking.typed().as_str(), asking.told("approval.refused").await?), ("", 1));
    let second = asking.open().await?;
    assert_eq!(second.question, "Really? [y/N]");

    // The process ends while the answer is on its way.
    asking.guest.fail("release", Some(Fault::Unreachable));
    asking.answer(&second, "yes", None).await?;
    asking.bed.engine.shutdown().await;
    asking.end().await;
    asking.guest.fail("release", None);
    asking.crash().await?;
    assert_eq!(asking.settled(&second).await?, Some(Delivery::Refused));
    assert_eq!(asking.typed(), "");
    Ok(())
}

#[tokio::test]
async fn what_a_program_ended_of_was_typed_though_the_server_learns_it_later() -> Tested {
    for crashes in [false, true] {
        let mut asking = Asking::start().await?;
        let approval = asking.asks("Go on? [y/N] ").await?;
        asking.guest.fail("release", Some(Fault::Lost));
        assert_eq!(asking.answer(&approval, "yes", None).await?.delivery, Some(Delivery::Pending));
        asking.end().await;
        if crashes {
            asking.crash().await?;
        }
        let process = asking.process.id.as_str();
        let over = || async {
            let process = asking.bed.engine.process("a", process).await.ok()?;
            (process.state == sandbar_api::ProcessState::Exited).then_some(())
        };
        soon(over).await?;
        asking.guest.fail("release", None);
        assert_eq!(asking.settled(&approval).await?, Some(Delivery::Typed), "{crashes}");
        soon(|| async { asking.guest.play(process).is_none().then_some(()) }).await?;
    }
    Ok(())
}
