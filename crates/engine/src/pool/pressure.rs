//! Whether the host's memory is so short that what nobody uses yet should go.

use std::{fs, sync::Arc};

/// Why memory is short, if it is. A closure, so that tests can have it so.
pub(super) type Pressure = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Percent of the memory that has to be available.
const LEAST_AVAILABLE: u64 = 5;
/// Percent of the last ten seconds in which something waited for memory.
const MOST_STALLED: f64 = 20.0;

pub(super) fn of_host() -> Option<String> {
    // What cannot be read says nothing: old kernels have no pressure file.
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    judge(&read("/proc/meminfo"), &read("/proc/pressure/memory"))
}

fn judge(meminfo: &str, pressure: &str) -> Option<String> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if let (Some(total), Some(available)) = (kib("MemTotal"), kib("MemAvailable"))
        && available.saturating_mul(100) < total.saturating_mul(LEAST_AVAILABLE)
    {
        return Some(format!(
            "Memory is short: {} of {} MiB are available. The pool is filled again when that is over.",
            available >> 10,
            total >> 10
        ));
    }
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let stalled: f64 = some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()?;
    (stalled > MOST_STALLED).then(|| {
        format!(
            "Memory is short: something waited for it during {stalled} % of the last ten seconds. \
             The pool is filled again when that is over."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_by_either_sign() {
        let meminfo =
            |available: u64| format!("MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\n");
        let pressure =
            |some: &str| format!("some avg10={some} avg60=99.00 total=1\nfull avg10=99.00 avg60=99.00 total=1\n");
        assert_eq!(judge(&meminfo(50_000), &pressure("20.00")), None);
        assert!(judge(&meminfo(49_999), "").is_some_and(|why| why.contains("48 of 976 MiB")));
        assert!(judge(&meminfo(500_000), &pressure("20.01")).is_some_and(|why| why.contains("20.01 %")));
        for (meminfo, pressure) in [("", ""), ("MemTotal: x kB", "some avg10=x"), ("MemTotal:", "some")] {
            assert_eq!(judge(meminfo, pressure), None, "{meminfo} {pressure}");
        }
    }
}
