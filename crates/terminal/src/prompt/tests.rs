//! What is typed for each choice, and what tells a question from its likeness; the labelled corpus measures the rest.

use super::*;

/// Rows with `▮` at the cursor, in a terminal that gathers lines.
fn look(text: &str) -> Look {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut cursor = (u16::try_from(lines.len()).unwrap_or(0), 0);
    for (row, line) in lines.iter_mut().enumerate() {
        if let Some(at) = line.find('▮') {
            cursor = (u16::try_from(row).unwrap_or(0), u16::try_from(scene::width(&line[..at])).unwrap_or(0));
            line.replace_range(at..at + '▮'.len_utf8(), "");
        }
    }
    Look {
        lines,
        cols: 80,
        cursor,
        cursor_visible: true,
        alternate_screen: false,
        application_cursor: false,
        title: String::new(),
        echo: true,
        canonical: true,
        quiet_ms: 1000,
        blocked_read: None,
    }
}

fn raw(text: &str) -> Look {
    Look { echo: false, canonical: false, cursor_visible: text.contains('▮'), ..look(text) }
}

fn keys(look: &Look) -> Vec<(String, String)> {
    let prompt = detect(look).unwrap_or_else(|| panic!("{look:?}"));
    assert!(prompt.asks(), "{prompt:?}");
    prompt.choices.into_iter().map(|choice| (choice.label, choice.keys)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(label, keys)| ((*label).to_owned(), (*keys).to_owned())).collect()
}

#[test]
fn lines_are_answered_with_enter() {
    assert_eq!(keys(&look("Go on? [Y/n] ▮")), pairs(&[("Y", "Y\r"), ("n", "n\r")]));
    assert_eq!(
        keys(&look("continue connecting (yes/no/[fingerprint])? ▮")),
        pairs(&[("yes", "yes\r"), ("no", "no\r"), ("fingerprint", "fingerprint\r")])
    );
    assert_eq!(keys(&look("1) one\n2) two\n#? ▮")), pairs(&[("one", "1\r"), ("two", "2\r")]));
}

#[test]
fn single_keys_are_answered_without() {
    assert_eq!(keys(&raw("Delete it? [y/n] ▮")), pairs(&[("y", "y"), ("n", "n")]));
    assert_eq!(keys(&raw("--More--▮")), pairs(&[("--More--", " ")]));
}

#[test]
fn permission_menus_are_answered_by_number() {
    let asked =
        raw("│ Do you want to proceed?      │\n│ ❯ 1. Yes                     │\n│   2. Yes, and don't ask again │\n\
                     │   3. No (esc)                │\n╰──────────────────────────────╯");
    let prompt = detect(&asked).unwrap_or_else(|| panic!("{asked:?}"));
    assert_eq!(prompt.kind, Kind::Permission { selected: Some(0) });
    assert_eq!(prompt.question, "Do you want to proceed?");
    assert_eq!(keys(&asked), pairs(&[("Yes", "1"), ("Yes, and don't ask again", "2"), ("No (esc)", "3")]));
}

#[test]
fn menus_are_walked_from_where_the_pointer_is() {
    let asked = raw("? Which one? (Use arrow keys)\n  first\n❯ second\n  third");
    assert_eq!(keys(&asked), pairs(&[("first", "\x1b[A\r"), ("second", "\r"), ("third", "\x1b[B\r")]));
    let application = Look { application_cursor: true, ..asked };
    assert_eq!(keys(&application)[0].1, "\x1bOA\r");
    let ticks = raw("? Which ones? (Press <space> to select)\n❯ ◯ first\n  ◉ second");
    assert_eq!(keys(&ticks)[1].1, "\x1b[B \r");
}

#[test]
fn several_are_ticked_by_number_and_ended_by_an_arrow() {
    let asked = raw(
        "←  ☐ Checks  ✔ Submit  →\n\nWhich checks should run?\n\n❯ 1. [ ] Format\n  rustfmt\n  2. [✔] Lint\n  clippy\n  3. [ ] Other\n     Submit\n\n\
                     Enter to select · ↑/↓ to navigate",
    );
    let typed = [("[ ] Format", "1"), ("[✔] Lint", "2"), ("[ ] Other", "3"), ("→ ☐ Checks  ✔ Submit", "\x1b[C")];
    assert_eq!(keys(&asked), pairs(&typed));
}

#[test]
fn numbers_count_also_where_a_blank_is_lost() {
    let asked = raw(
        "Do you want to proceed?\n❯ 1. Yes\n  2.Yes, and don't ask again for npm test commands in\n    /workspace\n  3. No",
    );
    assert_eq!(detect(&asked).map(|prompt| prompt.kind), Some(Kind::Permission { selected: Some(0) }));
    assert_eq!(keys(&asked)[1].1, "2");
    let files = raw("? Which file? (Use arrow keys)\n❯ 1.md\n  2.md");
    assert_eq!(keys(&files)[1].1, "\x1b[B\r", "names are no numbers");
}

#[test]
fn long_labels_run_on() {
    let asked = raw("Proceed?\n❯ 1. Yes, and do not ask again for commands\n     like this one\n  2. No");
    assert_eq!(keys(&asked).len(), 2);
}

#[test]
fn passwords_are_known_by_the_terminal() {
    let silent = Look { echo: false, ..look("Speak, friend: ▮") };
    assert_eq!(detect(&silent).map(|prompt| prompt.kind), Some(Kind::Password));
    let readline = Look { canonical: false, ..silent };
    assert_ne!(detect(&readline).map(|prompt| prompt.kind), Some(Kind::Password), "readline echoes by itself");
}

#[test]
fn the_same_words_ask_only_at_the_cursor_and_at_rest() {
    let asks = |look: &Look| detect(look).is_some_and(|prompt| prompt.asks());
    let asked = look("Are you sure? (y/n) ▮");
    assert!(asks(&asked));
    assert!(!asks(&Look { quiet_ms: QUIET_MS - 1, ..asked.clone() }), "still at work");
    assert!(!asks(&look("Are you sure? (y/n)\n▮")), "printed");
    assert!(asks(&Look { blocked_read: Some(true), ..look("Are you sure? (y/n)\n▮") }), "printed, then read");
    assert!(!asks(&look("Are you sure? (y/n) ▮\nok")), "something came after");
    assert!(!asks(&look("Are you sure? (y/n) y▮")), "being answered");
    assert!(!asks(&raw("ada@build:~$ echo Are you sure? (y/n)▮")), "typed at a shell");
}

#[test]
fn shells_and_interpreters_score_low() {
    for text in ["ada@build:~$ ▮", "root@x:/# ▮", ">>> ▮", "mysql> ▮", "(gdb) ▮", "❯ ▮", "In [3]: ▮"] {
        let prompt = detect(&raw(text)).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(prompt.kind, Kind::ShellPrompt, "{text}");
        assert!(prompt.score < THRESHOLD && prompt.score >= 0.5, "{text}");
    }
}

#[test]
fn a_read_that_blocks_raises_the_score() {
    let score = |blocked_read| {
        let look = Look { blocked_read, ..look("Reihenfolge: ▮") };
        detect(&look).map_or(0.0, |prompt| prompt.score)
    };
    assert!(score(Some(true)) >= THRESHOLD && score(None) < score(Some(true)) && score(Some(false)) < score(None));
}

#[test]
fn the_excerpt_is_the_end_of_the_screen() {
    let text: String = (0..40).map(|line| format!("line {line}\n")).collect::<String>() + "Name: ▮";
    let prompt = detect(&look(&text)).unwrap_or_else(|| panic!("found"));
    assert_eq!(prompt.excerpt.lines().count(), 20);
    assert!(prompt.excerpt.ends_with("Name:"));
}

#[test]
fn prompts_as_data() {
    let prompt = detect(&look("Go on? [Y/n] ▮")).unwrap_or_else(|| panic!("found"));
    let json = serde_json::to_value(&prompt).unwrap_or_default();
    assert_eq!((&json["type"], &json["choices"][0]["keys"]), (&"yes_no".into(), &"Y\r".into()));
    assert_eq!(serde_json::from_value::<Prompt>(json).ok(), Some(prompt));
}
