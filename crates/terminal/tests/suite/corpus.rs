//! Precision and recall of prompt detection on the labelled screens in `corpus/`, held to what is checked in.

use std::{fmt::Write as _, fs, path::Path};

use sandbar_terminal::{Look, detect};

const LEAST: f64 = 0.98;
const CURSOR: char = '▮';

struct Labelled {
    name: String,
    label: String,
    look: Look,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn read(file: &Path) -> Vec<Labelled> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut screens: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for line in text.lines() {
        let header: Option<Vec<&str>> = line.strip_prefix("=== ").map(|line| line.split(" | ").collect());
        match header.filter(|parts| parts.len() == 3) {
            Some(parts) => screens.push((parts.into_iter().map(str::to_owned).collect(), Vec::new())),
            None => {
                screens.last_mut().unwrap_or_else(|| panic!("{}: no header", file.display())).1.push(line.to_owned())
            }
        }
    }
    screens.into_iter().map(|(header, rows)| labelled(&header, rows)).collect()
}

fn labelled(header: &[String], mut rows: Vec<String>) -> Labelled {
    let (name, label) = (header[0].clone(), header[1].clone());
    let settings: Vec<&str> = header[2].split_whitespace().collect();
    let set = |key: &str| settings.iter().find_map(|setting| setting.strip_prefix(key)?.strip_prefix('='));
    let end = rows.iter().rposition(|row| !row.trim().is_empty()).map_or(0, |row| row + 1);
    let mut cursor = (end, 0);
    for (row, text) in rows.iter_mut().enumerate() {
        if let Some(at) = text.find(CURSOR) {
            cursor = (row, unicode_width::UnicodeWidthStr::width(&text[..at]));
            text.remove(at);
        }
    }
    let height = set("rows").map_or(24, |height| height.parse().unwrap_or_else(|_| panic!("{name}: rows")));
    rows.resize(rows.len().max(cursor.0 + 1).max(height), String::new());
    let look = Look {
        lines: rows,
        cols: set("cols").map_or(80, |cols| cols.parse().unwrap_or_else(|_| panic!("{name}: cols"))),
        cursor: (u16::try_from(cursor.0).unwrap_or(0), u16::try_from(cursor.1).unwrap_or(0)),
        cursor_visible: set("cursor") != Some("hidden"),
        alternate_screen: set("alternate") == Some("yes"),
        application_cursor: false,
        title: String::new(),
        echo: settings[0] == "line",
        canonical: matches!(settings[0], "line" | "secret"),
        quiet_ms: set("quiet").map_or(2000, |quiet| quiet.parse().unwrap_or_else(|_| panic!("{name}: quiet"))),
        blocked_read: set("read").map(|read| read == "yes"),
    };
    assert!(["line", "raw", "secret"].contains(&settings[0]), "{name}: {}", settings[0]);
    Labelled { name, label, look }
}

#[derive(Default)]
struct Tally {
    screens: usize,
    right: usize,
    kinds: usize,
    wrong: Vec<String>,
}

fn tally(part: &str, asks: bool, out: &mut String) -> Tally {
    let mut files: Vec<_> =
        fs::read_dir(folder().join(part)).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    let mut all = Tally::default();
    for file in files {
        let (mut screens, mut right) = (0, 0);
        for screen in read(&file) {
            let found = detect(&screen.look);
            let kind = found.as_ref().and_then(|prompt| serde_json::to_value(&prompt.kind).ok());
            let kind = kind.as_ref().and_then(|kind| kind["type"].as_str()).unwrap_or("none").to_owned();
            let asked = found.as_ref().is_some_and(sandbar_terminal::Prompt::asks);
            screens += 1;
            right += usize::from(asked == asks);
            all.kinds += usize::from(asked && kind == screen.label);
            if asked != asks || (asks && kind != screen.label) {
                let score = found.map_or(0.0, |prompt| prompt.score);
                all.wrong.push(format!("{part}/{}: {} found as {kind} with {score:.2}", screen.name, screen.label));
            }
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(out, "| {part}/{name} | {screens} | {right} |");
        all.screens += screens;
        all.right += right;
    }
    all
}

#[test]
fn precision_and_recall() {
    let mut table = String::new();
    let positive = tally("positive", true, &mut table);
    let negative = tally("negative", false, &mut table);
    let false_alarms = negative.screens - negative.right;
    let precision = positive.right as f64 / (positive.right + false_alarms) as f64;
    let recall = positive.right as f64 / positive.screens as f64;
    let mut score = format!(
        "# Score\n\n| | |\n| --- | --- |\n| waiting for a person | {} |\n| not waiting | {} |\n| precision | {precision:.4} |\n\
         | recall | {recall:.4} |\n| right kind, of those found | {} of {} |\n\n| file | screens | right |\n| --- | --- | --- |\n{table}",
        positive.screens, negative.screens, positive.kinds, positive.right
    );
    for wrong in positive.wrong.iter().chain(&negative.wrong) {
        let _ = write!(score, "\n- {wrong}");
    }
    let score = format!("{}\n", score.trim_end());
    let file = folder().join("SCORE.md");
    if std::env::var_os("UPDATE_SCORE").is_some() {
        fs::write(&file, &score).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    assert!(positive.screens >= 80 && negative.screens >= 160, "{score}");
    assert!(precision >= LEAST && recall >= LEAST, "{score}");
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(kept, score, "the score changed; look at it, then UPDATE_SCORE=1");
}
