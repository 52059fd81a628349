//! What acts on a terminal: sequences that a hostile program prints, and a reading of what arrived at somebody's terminal
//! that knows nothing of our own filter. It believes every form that any terminal does: seven bits, eight, and UTF-8.

/// How somebody looks.
pub(crate) enum Look {
    /// Attached: keys go to the program, so modes of keys are its own; titles stand behind this.
    Attached(String),
    /// Something is shown, and what the terminal types lands in a shell.
    Shown,
}

/// For the command line of a program; nothing but words to Python.
pub(crate) const EVIL_WORDS: &str = "\u{1b}]52;c;b3duZWQ=\u{7}\u{1b}]0;owned\u{7}\u{1b}[6n\u{9b}6n\u{5}";

/// Of these the first half is printed to one server, the second to the next.
pub(crate) const IN_HALVES: &[&str] = &["clipboard set", "cursor report", "request of a setting", "clipboard in UTF-8"];

pub(crate) fn evil() -> Vec<(&'static str, Vec<u8>)> {
    let long = [b"\x1b]52;c;", &[b'A'; 20_000][..], b"\x07"].concat();
    let plain: &[(&str, &[u8])] = &[
        ("clipboard set", b"\x1b]52;c;b3duZWQ=\x07"),
        ("clipboard set, ST", b"\x1b]52;c;b3duZWQ=\x1b\\"),
        ("clipboard query", b"\x1b]52;c;?\x07"),
        ("title and icon", b"\x1b]0;owned\x07"),
        ("icon", b"\x1b]1;owned\x07"),
        ("folder", b"\x1b]7;file://host/owned\x07"),
        ("link", b"\x1b]8;;http://evil.example\x07here\x1b]8;;\x07"),
        ("notification", b"\x1b]9;owned\x07"),
        ("notification, urxvt", b"\x1b]777;notify;a;owned\x07"),
        ("notification, kitty", b"\x1b]99;;owned\x1b\\"),
        ("file", b"\x1b]1337;File=inline=0:b3duZWQ=\x07"),
        ("palette", b"\x1b]4;1;rgb:00/00/00\x07"),
        ("palette query", b"\x1b]4;1;?\x07"),
        ("colour query", b"\x1b]11;?\x07"),
        ("font query", b"\x1b]50;?\x07"),
        ("log file", b"\x1b]46;/tmp/owned\x07"),
        ("prompt mark", b"\x1b]133;A\x07"),
        ("status report", b"\x1b[5n"),
        ("cursor report", b"\x1b[6n"),
        ("cursor report, DEC", b"\x1b[?6n"),
        ("printer report", b"\x1b[?15n"),
        ("macro report", b"\x1b[?62n"),
        ("theme report", b"\x1b[?996n"),
        ("attributes", b"\x1b[c"),
        ("attributes 2", b"\x1b[>c"),
        ("attributes 3", b"\x1b[=c"),
        ("identify", b"\x1bZ"),
        ("version", b"\x1b[>q"),
        ("mode query", b"\x1b[?2026$p"),
        ("mode query, ANSI", b"\x1b[4$p"),
        ("title report", b"\x1b[21t"),
        ("icon report", b"\x1b[20t"),
        ("window report", b"\x1b[14t"),
        ("size report", b"\x1b[18t"),
        ("iconify", b"\x1b[2t"),
        ("move", b"\x1b[3;0;0t"),
        ("grow", b"\x1b[8;999;999t"),
        ("parameters", b"\x1b[x"),
        ("checksum", b"\x1b[1;1;1;1;9;9*y"),
        ("presentation", b"\x1b[1$w"),
        ("state", b"\x1b[1$u"),
        ("test", b"\x1b[2;1y"),
        ("enquiry", b"\x05"),
        ("print all", b"\x1b[i"),
        ("printer on", b"\x1b[5iowned\x1b[4i"),
        ("printer, DEC", b"\x1b[?5i"),
        ("keyboard lock", b"\x1b[2h"),
        ("new line mode", b"\x1b[20h"),
        ("132 columns", b"\x1b[?3h"),
        ("reverse wrap and others", b"\x1b[?45;80;1070;8452h"),
        ("keyboard protocol", b"\x1b[>1u"),
        ("keyboard query", b"\x1b[?u"),
        ("modified keys", b"\x1b[>4;2m"),
        ("highlight tracking", b"\x1b[1;1;1;1;1T"),
        ("scrollback", b"\x1b[3J"),
        ("reset", b"\x1bc"),
        ("request of a setting", b"\x1bP$qm\x1b\\"),
        ("request of a capability", b"\x1bP+q544e\x1b\\"),
        ("keys", b"\x1bP0;1|17/6f776e65640d\x1b\\"),
        ("sixel", b"\x1bPq#0;2;0;0;0~-\x1b\\"),
        ("font", b"\x1bP1;1;1{ @owned\x1b\\"),
        ("macro", b"\x1bP1;0;0!zowned\x1b\\"),
        ("passed on by tmux", b"\x1bPtmux;\x1b\x1b]52;c;b3duZWQ=\x07\x1b\\"),
        ("application", b"\x1b_owned\x1b\\"),
        ("graphics", b"\x1b_Gi=1,a=q;AAAA\x1b\\"),
        ("private", b"\x1b^owned\x1b\\"),
        ("string", b"\x1bXowned\x1b\\"),
        ("title of screen", b"\x1bkowned\x1b\\"),
        ("cursor report in 8 bits", b"\x9b6n"),
        ("clipboard in 8 bits", b"\x9d52;c;b3duZWQ=\x9c"),
        ("setting in 8 bits", b"\x90$qm\x9c"),
        ("application in 8 bits", b"\x9fowned\x9c"),
        ("identify in 8 bits", b"\x9a"),
        ("cursor report in UTF-8", b"\xc2\x9b6n"),
        ("clipboard in UTF-8", b"\xc2\x9d52;c;b3duZWQ=\xc2\x9c"),
        ("setting in UTF-8", b"\xc2\x90$qm\xc2\x9c"),
        ("identify in UTF-8", b"\xc2\x9a"),
        ("within a title", b"\x1b]0;a\x1b[6n\x07"),
        ("within a sequence", b"\x1b[1;\x1b[6n"),
        ("after a cancelled one", b"\x1b]52;c;\x18\x1b[6n"),
        ("with a control inside", b"\x1b[\x0b6n"),
        ("with zeroes", b"\x1b[0000000006n"),
        ("after half a letter", b"\xe2\x82\x1b[6n"),
        ("after half a letter, 8 bits", b"\xe2\x9b6n"),
        ("within a request", b"\x1bP$q\x1b[6n\x1b\\"),
        ("with a null inside", b"\x1b\x00[6n"),
        ("with a delete inside", b"\x1b[\x7f6n"),
    ];
    plain.iter().map(|(name, bytes)| (*name, bytes.to_vec())).chain([("a long one", long)]).collect()
}

/// All of them, each on a line of its own.
pub(crate) fn evil_bytes() -> Vec<u8> {
    evil().into_iter().flat_map(|(_, bytes)| [bytes, b"\x1b\\\r\n".to_vec()].concat()).collect()
}

/// Everything in there that does more than draw.
pub(crate) fn acts(bytes: &[u8], look: &Look) -> Vec<String> {
    let mut found = vec![];
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // In a terminal of eight bits these begin sequences; to all others they are noise.
        found.extend(
            chunk.invalid().iter().filter(|byte| (0x80..0xa0).contains(*byte)).map(|byte| format!("{byte:#x}")),
        );
    }
    let mut rest = text.as_str();
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '\u{1b}' => rest = escape(rest, look, &mut found),
            '\u{7}'..='\u{f}' => {}
            letter if letter.is_control() => found.push(letter.escape_debug().to_string()),
            _ => {}
        }
    }
    found
}

fn escape<'a>(rest: &'a str, look: &Look, found: &mut Vec<String>) -> &'a str {
    let Some(kind) = rest.chars().next().filter(char::is_ascii) else {
        found.push("half an escape".into());
        return rest;
    };
    let body = &rest[1..];
    match kind {
        '[' => {
            let end = body.find(|letter: char| !matches!(letter, ' '..='?')).unwrap_or(body.len());
            let Some(last) = body[end..].chars().next() else { return "" };
            if !draws(&body[..end], last, look) {
                found.push(format!("CSI {}{}", &body[..end], last.escape_debug()));
            }
            &body[end + last.len_utf8()..]
        }
        ']' | 'P' | 'X' | '^' | '_' | 'k' => {
            let end = body.find(['\u{7}', '\u{1b}', '\u{9c}', '\u{18}']).unwrap_or(body.len());
            let named = match look {
                Look::Attached(prefix) if kind == ']' => body[..end].starts_with(&format!("2;{prefix}")),
                _ => false,
            };
            if !(named && body[end..].starts_with("\u{1b}\\")) {
                found.push(format!("ESC {kind} {}", body[..end].chars().take(30).collect::<String>()));
            }
            let tail = &body[end..];
            tail.strip_prefix("\u{1b}\\").or_else(|| tail.strip_prefix('\u{7}')).unwrap_or(tail)
        }
        '(' | ')' if body.starts_with(['0', 'B']) => &body[1..],
        '7' | '8' | 'D' | 'E' | 'M' | '=' | '>' | '\\' => body,
        other => {
            found.push(format!("ESC {}", other.escape_debug()));
            body
        }
    }
}

/// Modes of mouse, focus and paste, by which a terminal types.
const KEYS: &[&str] = &["1", "9", "66", "1000", "1002", "1003", "1004", "1005", "1006", "1015", "2004"];
const DRAWING: &[&str] = &["6", "7", "12", "25", "47", "1047", "1048", "1049", "2026"];

fn draws(params: &str, last: char, look: &Look) -> bool {
    let few = params.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':'));
    match (params, last) {
        // The command line's own: it keeps the title and puts it back.
        ("22;2" | "23;2", 't') => matches!(look, Look::Attached(_)),
        ("4", 'h' | 'l') | ("!", 'p') | ("", 's' | 'u') => true,
        (_, 'h' | 'l') => params.strip_prefix('?').is_some_and(|modes| {
            let keys = last == 'l' || matches!(look, Look::Attached(_));
            modes.split(';').all(|mode| DRAWING.contains(&mode) || (keys && KEYS.contains(&mode)))
        }),
        (_, 'J' | 'K') => !params.trim_start_matches('?').split(';').any(|number| number == "3"),
        (_, 'T') => few && !params.contains(';'),
        (_, 'q') => params.ends_with(' '),
        (_, '@' | 'A'..='I' | 'L' | 'M' | 'P' | 'S' | 'X' | 'Z' | '`' | 'a' | 'b' | 'd'..='f' | 'm' | 'r') => few,
        _ => false,
    }
}
