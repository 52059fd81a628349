//! What bytes are, by how they begin: enough to show images, and to tell a model what it has found.

const IMAGES: [(&[u8], &str); 4] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
];

const OTHERS: [(&[u8], &str, &str); 12] = [
    (b"%PDF-", "application/pdf", "a PDF document"),
    (b"\x7fELF", "application/x-elf", "an ELF program or library"),
    (b"\x1f\x8b", "application/gzip", "gzip"),
    (b"PK\x03\x04", "application/zip", "a zip archive or a document made of one"),
    (b"\x28\xb5\x2f\xfd", "application/zstd", "zstd"),
    (b"\xfd7zXZ\0", "application/x-xz", "xz"),
    (b"BZh", "application/x-bzip2", "bzip2"),
    (b"SQLite format 3\0", "application/vnd.sqlite3", "an SQLite database"),
    (b"\0asm", "application/wasm", "WebAssembly"),
    (b"\xca\xfe\xba\xbe", "application/java-vm", "Java byte code"),
    (b"\xff\xfe", "application/octet-stream", "perhaps UTF-16 text"),
    (b"\xfe\xff", "application/octet-stream", "perhaps UTF-16 text"),
];

/// The type of an image that models can look at.
pub(super) fn image(begin: &[u8]) -> Option<&'static str> {
    let webp = begin.starts_with(b"RIFF") && begin.get(8..12) == Some(b"WEBP");
    let known = || IMAGES.iter().find(|(magic, _)| begin.starts_with(magic)).map(|(_, mime)| *mime);
    if webp { Some("image/webp") } else { known() }
}

pub(super) fn mime(content: &[u8]) -> &'static str {
    let other = OTHERS.iter().find(|(magic, ..)| content.starts_with(magic)).map(|(_, mime, _)| *mime);
    image(content).or(other).unwrap_or_else(|| match std::str::from_utf8(content) {
        Ok(_) => "text/plain",
        Err(_) => "application/octet-stream",
    })
}

pub(super) fn words(content: &[u8]) -> &'static str {
    let other = OTHERS.iter().find(|(magic, ..)| content.starts_with(magic)).map(|(.., words)| *words);
    image(content).or(other).unwrap_or("data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_how_they_begin() {
        for (content, is, called) in [
            (&b"\x89PNG\r\n\x1a\nrest"[..], "image/png", "image/png"),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", "image/webp", "image/webp"),
            (b"RIFF\x01\x02\x03\x04WAVE\xff", "application/octet-stream", "data"),
            (b"\x7fELF\x02", "application/x-elf", "an ELF program or library"),
            (b"\xff\xd8", "application/octet-stream", "data"),
            (b"plain", "text/plain", "data"),
            (b"", "text/plain", "data"),
        ] {
            assert_eq!((mime(content), words(content)), (is, called), "{content:?}");
        }
        assert_eq!(image(b"%PDF-1.7"), None);
    }
}
