//! A file whose long stretches of zeros take no room: what a sandbox calls a file of many gigabytes may be nothing else.

use std::io::{self, SeekFrom};

use tokio::{
    fs::File,
    io::{AsyncSeekExt as _, AsyncWriteExt as _},
};

/// What filesystems keep as a whole.
const BLOCK: usize = 4096;

pub(super) struct WithHoles {
    file: File,
    /// How far it is written, holes included.
    length: u64,
    /// What it ends with was not written.
    ends_in_hole: bool,
}

impl WithHoles {
    /// Of an empty file.
    pub(super) fn new(file: File) -> Self {
        Self { file, length: 0, ends_in_hole: false }
    }

    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((run, is_hole)) = run(bytes) {
            if !is_hole {
                if self.ends_in_hole {
                    self.file.seek(SeekFrom::Start(self.length)).await?;
                }
                self.file.write_all(&bytes[..run]).await?;
            }
            self.ends_in_hole = is_hole;
            self.length += run as u64;
            bytes = &bytes[run..];
        }
        Ok(())
    }

    /// The file as long as it is to be.
    pub(super) async fn finish(mut self) -> io::Result<File> {
        self.file.flush().await?;
        if self.ends_in_hole {
            self.file.set_len(self.length).await?;
        }
        Ok(self.file)
    }
}

/// How many bytes at the beginning are of one kind, in whole blocks, and whether they are zeros.
fn run(bytes: &[u8]) -> Option<(usize, bool)> {
    let is_hole = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let kind = is_hole(bytes.chunks(BLOCK).next()?);
    Some((bytes.chunks(BLOCK).take_while(|block| is_hole(block) == kind).map(<[u8]>::len).sum(), kind))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn zeros_take_no_room_and_everything_else_arrives() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let zeros = vec![0; 1 << 20];
        for size in [777, BLOCK, 5000, 1 << 20] {
            let mut wanted = [b"begin".as_slice(), &zeros, b"middle", &zeros[..9000], &[1; 9000], &zeros].concat();
            for end in [b"".as_slice(), b"end"] {
                wanted.extend_from_slice(end);
                let path = directory.path().join("file");
                let mut file = WithHoles::new(File::create(&path).await?);
                for piece in wanted.chunks(size) {
                    file.write(piece).await?;
                }
                file.finish().await?;
                assert!(std::fs::read(&path)? == wanted, "in pieces of {size}");
                let taken = std::fs::metadata(&path)?.blocks() * 512;
                assert!(taken < 256 * 1024, "{taken} bytes on the disk, in pieces of {size}");
            }
        }
        Ok(())
    }
}
