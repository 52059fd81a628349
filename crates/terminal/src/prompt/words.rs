//! The word lists of `words.txt`, read once.

use std::{
    collections::{HashMap, HashSet},
    sync::OnceLock,
};

const FILE: &str = include_str!("words.txt");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum List {
    Yes,
    No,
    Secret,
    Input,
    Question,
    Enter,
    Key,
    Hint,
}

const NAMES: [(&str, List); 8] = [
    ("yes", List::Yes),
    ("no", List::No),
    ("secret", List::Secret),
    ("input", List::Input),
    ("question", List::Question),
    ("enter", List::Enter),
    ("key", List::Key),
    ("hint", List::Hint),
];

fn lists() -> &'static HashMap<List, HashSet<&'static str>> {
    static LISTS: OnceLock<HashMap<List, HashSet<&'static str>>> = OnceLock::new();
    LISTS.get_or_init(|| {
        let mut lists: HashMap<List, HashSet<&str>> = HashMap::new();
        let mut current = None;
        for line in FILE.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            let heading = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
            if let Some((_, list)) = NAMES.iter().find(|(name, _)| heading == Some(*name)) {
                current = Some(*list);
            } else if let Some(list) = current {
                let words = line.split(',').map(str::trim).filter(|word| !word.is_empty());
                lists.entry(list).or_default().extend(words);
            }
        }
        lists
    })
}

impl List {
    /// The whole of `text`, whatever its case, is an entry.
    pub(super) fn is(self, text: &str) -> bool {
        lists().get(&self).is_some_and(|words| words.contains(text.trim().to_lowercase().as_str()))
    }

    /// Some entry stands in `text`, at word boundaries where the script has any.
    pub(super) fn within(self, text: &str) -> bool {
        let text = text.to_lowercase();
        lists().get(&self).is_some_and(|words| words.iter().any(|word| stands(&text, word)))
    }
}

fn stands(text: &str, word: &str) -> bool {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(word)) {
        let (start, end) = (from + found, from + found + word.len());
        let before = text.get(..start).and_then(|part| part.chars().next_back());
        let after = text.get(end..).and_then(|part| part.chars().next());
        let joins = |inner: Option<char>, outer: Option<char>| {
            // Scripts without capitals mostly write without spaces.
            inner.is_some_and(|letter| letter.is_lowercase()) && outer.is_some_and(|letter| letter.is_lowercase())
        };
        if !joins(word.chars().next(), before) && !joins(word.chars().next_back(), after) {
            return true;
        }
        from = end;
    }
    false
}
