//! What can go wrong inside, and the one place that turns it into a gRPC status.

use std::io;

use tonic::{Code as Grpc, Status};

use crate::protocol::CODE_KEY;

macro_rules! codes {
    ($($name:ident $text:literal $grpc:ident)*) => {
        /// The stable codes of the API's problems that the guest can cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Code { $($name),* }
        impl Code {
            const ALL: &[Code] = &[$(Code::$name),*];
            pub(crate) fn as_str(self) -> &'static str { match self { $(Code::$name => $text),* } }
            fn grpc(self) -> Grpc { match self { $(Code::$name => Grpc::$grpc),* } }
        }
    };
}

codes! {
    BadRequest "bad_request" InvalidArgument
    BadCommand "bad_command" InvalidArgument
    BadEnv "bad_env" InvalidArgument
    BadPath "bad_path" InvalidArgument
    BadArchive "bad_archive" InvalidArgument
    TooLarge "too_large" InvalidArgument
    FileForbidden "file_forbidden" PermissionDenied
    UnknownProcess "unknown_process" NotFound
    UnknownFile "unknown_file" NotFound
    WrongState "wrong_state" FailedPrecondition
    WrongFileKind "wrong_file_kind" FailedPrecondition
    DirectoryNotEmpty "directory_not_empty" FailedPrecondition
    ProcessOver "process_over" FailedPrecondition
    NoStdin "no_stdin" FailedPrecondition
    NoTerminal "no_terminal" FailedPrecondition
    PortClosed "port_closed" FailedPrecondition
    OutputDropped "output_dropped" DataLoss
    OffsetBeyond "offset_beyond" OutOfRange
    CommandNotFound "command_not_found" NotFound
    CommandNotExecutable "command_not_executable" PermissionDenied
    NotEnforceable "not_enforceable" FailedPrecondition
    TooMany "too_many" ResourceExhausted
    DiskFull "disk_full" ResourceExhausted
    GuestUnreachable "guest_unreachable" Unavailable
    Internal "internal" Internal
}

/// A failure that is told to the caller: a code for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// For work of the guest itself, which a caller cannot have got wrong.
    pub(crate) fn internal(action: &str) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let code = match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Code::TooMany,
                _ => Code::Internal,
            };
            Self::new(code, format!("The guest failed to {action}: {error}."))
        }
    }

    /// `action` reads on after "failed to", for example "read `/a`".
    pub(crate) fn file(action: &str, error: &io::Error) -> Self {
        Self::new(file_code(error).unwrap_or(Code::Internal), format!("Failed to {action}: {error}."))
    }

    /// Travels from a file worker to the guest.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        format!("{}\n{}", self.code.as_str(), self.message).into_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (code, message) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let code = *Code::ALL.iter().find(|known| known.as_str() == code)?;
        Some(Self::new(code, message))
    }
}

/// What a failed file operation means; `None` for what nobody outside can do anything about.
pub(crate) fn file_code(error: &io::Error) -> Option<Code> {
    let by_number = error.raw_os_error().and_then(|number| {
        Some(match number {
            libc::ENOENT => Code::UnknownFile,
            libc::EACCES | libc::EPERM | libc::EROFS | libc::EBUSY | libc::ETXTBSY => Code::FileForbidden,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Code::DiskFull,
            libc::ENOTDIR | libc::EISDIR | libc::ENXIO | libc::ENODEV | libc::EEXIST => Code::WrongFileKind,
            libc::ENOTEMPTY => Code::DirectoryNotEmpty,
            libc::ENAMETOOLONG | libc::EINVAL | libc::ELOOP => Code::BadPath,
            _ => return None,
        })
    });
    // Errors that passed through the tar library have lost their number but not their kind.
    by_number.or_else(|| {
        Some(match error.kind() {
            io::ErrorKind::NotFound => Code::UnknownFile,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy => {
                Code::FileForbidden
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Code::DiskFull,
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::AlreadyExists => {
                Code::WrongFileKind
            }
            io::ErrorKind::DirectoryNotEmpty => Code::DirectoryNotEmpty,
            io::ErrorKind::InvalidFilename => Code::BadPath,
            _ => return None,
        })
    })
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let mut status = Status::new(fault.code.grpc(), fault.message);
        let code = tonic::metadata::MetadataValue::from_static(fault.code.as_str());
        status.metadata_mut().insert(CODE_KEY, code);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_the_way_out_of_a_worker() {
        for code in Code::ALL {
            let fault = Fault::new(*code, "one\ntwo");
            assert_eq!(Fault::from_bytes(&fault.to_bytes()), Some(fault));
        }
        assert_eq!(Fault::from_bytes(b"no_such_code\nx"), None);
    }

    #[test]
    fn numbers_and_kinds_agree() {
        for number in [libc::ENOENT, libc::EACCES, libc::EROFS, libc::ENOSPC, libc::ENOTDIR, libc::ENOTEMPTY] {
            let plain = io::Error::from_raw_os_error(number);
            let wrapped = io::Error::new(plain.kind(), "wrapped");
            assert_eq!(file_code(&plain), file_code(&wrapped), "{plain}");
        }
    }
}
