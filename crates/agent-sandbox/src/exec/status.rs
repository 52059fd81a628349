//! The last frame of a command's stream: how it ended.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::{ExecError, ExitStatus};

/// Success, an exit code, or an error of whoever should have run the command.
pub(super) fn ended(frame: &[u8]) -> Result<ExitStatus, ExecError> {
    let status: Status = serde_json::from_slice(frame).map_err(|error| ExecError::BadStatus(error.to_string()))?;
    let reason = status.reason.unwrap_or_default();
    match status.status.as_deref() {
        Some("Success") => Ok(ExitStatus { code: 0 }),
        Some("Failure") if reason == "NonZeroExitCode" => {
            let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
            let cause = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
            let code = cause.and_then(|cause| cause.message?.parse().ok());
            code.map(|code| ExitStatus { code })
                .ok_or_else(|| ExecError::BadStatus("NonZeroExitCode without its code".to_owned()))
        }
        Some("Failure") => Err(ExecError::NotRun { reason, message: status.message.unwrap_or_default() }),
        other => Err(ExecError::BadStatus(format!("status {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_command() {
        assert_eq!(ended(br#"{"metadata":{},"status":"Success"}"#).map(|end| end.code).ok(), Some(0));
        let seven = br#"{"metadata":{},"status":"Failure","message":"command terminated with exit code 7",
            "reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(ended(seven).map(|end| end.code).ok(), Some(7));
        let missing = br#"{"metadata":{},"status":"Failure","message":"executable file not found in $PATH",
            "reason":"InternalError","details":{"causes":[{"message":"x"}]},"code":500}"#;
        let error = ended(missing).err();
        assert!(
            matches!(&error, Some(ExecError::NotRun { reason, message })
            if reason == "InternalError" && message.contains("not found")),
            "{error:?}"
        );
        for bad in [
            &b"nothing"[..],
            br#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
            br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"?"}]}}"#,
            br#"{"status":"Perhaps"}"#,
        ] {
            assert!(matches!(ended(bad), Err(ExecError::BadStatus(_))), "{}", String::from_utf8_lossy(bad));
        }
    }
}
