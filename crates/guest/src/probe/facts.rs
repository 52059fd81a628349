//! What there is to see, mostly in `/proc`. Reading is apart from understanding, so that the latter is pure.

use std::{fs, io};

use rustix::process::Resource;

use super::{Facts, fact, outcome};
use crate::sys;

const STATUS: &[&str] = &[
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
];
const NAMESPACES: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
const MOUNTS: &[(&str, &str)] = &[
    ("root", "/"),
    ("usr", "/usr"),
    ("workspace", "/workspace"),
    ("tmp", "/tmp"),
    ("run", "/run"),
    ("shm", "/dev/shm"),
    ("home", "/home/agent"),
    ("proc", "/proc"),
];

/// Where Kubernetes puts it, unless it is told not to.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

pub(super) fn gather() -> Facts {
    let mut facts = Facts::new();
    let mut tell = |key: String, value: io::Result<String>| facts.insert(key, fact(value));
    let status = fs::read_to_string("/proc/self/status");
    for field in STATUS {
        tell(format!("status.{field}"), lookup(&status, |text| status_field(text, field)));
    }
    for name in NAMESPACES {
        let link = fs::read_link(format!("/proc/self/ns/{name}"));
        tell(format!("ns.{name}"), link.map(|target| target.display().to_string()));
    }
    tell("hostname".into(), Ok(rustix::system::uname().nodename().to_string_lossy().into_owned()));
    tell("pid1".into(), fs::read_to_string("/proc/1/comm").map(|name| name.trim_end().to_owned()));
    tell("pids".into(), processes().map(|count| count.to_string()));
    tell("interfaces".into(), fs::read_to_string("/proc/net/dev").map(|table| interfaces(&table)));
    tell("routes".into(), routes().map(|count| count.to_string()));
    tell("uid_map".into(), fs::read_to_string("/proc/self/uid_map").map(|text| lines(&text)));
    tell("cgroup".into(), fs::read_to_string("/proc/self/cgroup").map(|text| lines(&text)));
    tell("rlimit.nofile".into(), Ok(limit(Resource::Nofile)));
    tell("rlimit.core".into(), Ok(limit(Resource::Core)));
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    for (name, path) in MOUNTS {
        tell(format!("mount.{name}"), lookup(&mounts, |table| covering(table, path)));
    }
    for (name, path) in [("root", "/"), ("tmp", "/tmp"), ("workspace", "/workspace")] {
        let size = rustix::fs::statvfs(path).map(|found| found.f_blocks.saturating_mul(found.f_frsize).to_string());
        tell(format!("statfs.{name}"), size.map_err(io::Error::from));
    }
    tell("limit.memory".into(), first(&["memory.max", "memory/memory.limit_in_bytes"]));
    tell("limit.cpu".into(), first(&["cpu.max"]).or_else(|_| older_cpu_limit()));
    tell("limit.pids".into(), first(&["pids.max", "pids/pids.max"]));
    tell("kernel".into(), fs::read_to_string("/proc/version").map(|text| blanks_made_single(&text)));
    tell("boot".into(), fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| blanks_made_single(&text)));
    tell("service_account".into(), Ok(outcome(fs::read(SERVICE_ACCOUNT))));
    tell("landlock.abi".into(), sys::landlock_abi().map(|abi| abi.to_string()));
    facts
}

/// The first of these files of the cgroup that is seen here, whichever version it has.
fn first(names: &[&str]) -> io::Result<String> {
    let mut missing = io::ErrorKind::NotFound.into();
    for name in names {
        match fs::read_to_string(format!("/sys/fs/cgroup/{name}")) {
            Ok(text) => return Ok(blanks_made_single(&text)),
            Err(error) => missing = error,
        }
    }
    Err(missing)
}

/// In the newer one's words.
fn older_cpu_limit() -> io::Result<String> {
    let quota = first(&["cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us"])?;
    let period = first(&["cpu/cpu.cfs_period_us", "cpu,cpuacct/cpu.cfs_period_us"])?;
    Ok(if quota == "-1" { format!("max {period}") } else { format!("{quota} {period}") })
}

/// Something in a text that is shared by several facts; its error is theirs too.
fn lookup(text: &io::Result<String>, find: impl Fn(&str) -> Option<String>) -> io::Result<String> {
    match text {
        Ok(text) => find(text).ok_or_else(|| io::Error::other("not there")),
        Err(error) => Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)),
    }
}

fn blanks_made_single(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lines(text: &str) -> String {
    text.lines().map(blanks_made_single).collect::<Vec<_>>().join(";")
}

fn status_field(status: &str, field: &str) -> Option<String> {
    let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(blanks_made_single);
    status.lines().find_map(value)
}

fn processes() -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        count += usize::from(name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    }
    Ok(count)
}

/// Two lines of headings, then a line for each, its name before a colon.
fn interfaces(table: &str) -> String {
    let names = table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    names.collect::<Vec<_>>().join(" ")
}

fn routes() -> io::Result<usize> {
    let fourth = fs::read_to_string("/proc/net/route")?;
    // A kernel without IPv6 has no routes of it.
    let sixth = match fs::read_to_string("/proc/net/ipv6_route") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(routes_beyond_loopback(&fourth, &sixth))
}

fn routes_beyond_loopback(fourth: &str, sixth: &str) -> usize {
    let fourth = fourth.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let sixth = sixth.lines().filter_map(|line| line.split_whitespace().last());
    fourth.chain(sixth).filter(|interface| *interface != "lo").count()
}

fn limit(resource: Resource) -> String {
    let limit = rustix::process::getrlimit(resource);
    let side = |side: Option<u64>| side.map_or_else(|| "unlimited".to_owned(), |number| number.to_string());
    format!("{} {}", side(limit.current), side(limit.maximum))
}

/// Type and options of the mount that a path is on. Where several are stacked, the last one is on top.
fn covering(mountinfo: &str, path: &str) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    for line in mountinfo.lines() {
        let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
        let mut fields = mount.split(' ').skip(4);
        let (Some(place), Some(options)) = (fields.next(), fields.next()) else { continue };
        let inside =
            path.strip_prefix(place.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !inside || best.as_ref().is_some_and(|(length, _)| *length > place.len()) {
            continue;
        }
        let mut filesystem = filesystem.split(' ');
        let (kind, own) = (filesystem.next().unwrap_or_default(), filesystem.nth(1).unwrap_or_default());
        let read_only = own.split(',').any(|option| option == "ro");
        let effective = |option| if read_only && option == "rw" { "ro" } else { option };
        let options = options.split(',').map(effective).collect::<Vec<_>>().join(",");
        best = Some((place.len(), format!("{kind} {options}")));
    }
    best.map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
21 1 0:20 / / rw,relatime - overlay sandbar rw,lowerdir=/a
22 21 0:21 / /usr ro,nosuid - ext4 /dev/vda rw
23 21 0:22 / /tmp rw,nosuid shared:5 - tmpfs tmpfs rw,size=4k
24 23 0:23 / /tmp rw,noexec - tmpfs tmpfs ro
25 21 0:24 / /tmpfoo ro - proc proc rw
";

    #[test]
    fn a_path_is_on_the_longest_and_topmost_mount() {
        assert_eq!(covering(MOUNTINFO, "/").as_deref(), Some("overlay rw,relatime"));
        assert_eq!(covering(MOUNTINFO, "/workspace").as_deref(), Some("overlay rw,relatime"));
        assert_eq!(covering(MOUNTINFO, "/usr").as_deref(), Some("ext4 ro,nosuid"));
        assert_eq!(covering(MOUNTINFO, "/tmp").as_deref(), Some("tmpfs ro,noexec"));
        assert_eq!(covering("", "/"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Seccomp_filters:\t2\nSeccomp:\t1\nUid:\t0\t1\t2\t3\nGroups:\t\n";
        assert_eq!(status_field(status, "Seccomp").as_deref(), Some("1"));
        assert_eq!(status_field(status, "Uid").as_deref(), Some("0 1 2 3"));
        assert_eq!(status_field(status, "Groups").as_deref(), Some(""));
        assert_eq!(status_field(status, "CapEff"), None);
    }

    #[test]
    fn only_what_leads_out_is_a_route() {
        let fourth = "Iface\tDestination\tGateway\nlo\t0000007F\t0\neth0\t00000000\t1\n";
        let sixth =
            "0001 80 0000 00 0000 00000000 00000002 00000000 80200001       lo\nfe80 40 0 00 0 0 1 0 1     eth0\n";
        assert_eq!(routes_beyond_loopback(fourth, sixth), 2);
        assert_eq!(routes_beyond_loopback("", ""), 0);
        let table = "Inter-|   Receive\n face |bytes\n    lo:  1 2\n  eth0: 1 2\n";
        assert_eq!(interfaces(table), "lo eth0");
        assert_eq!(lines(" 0   100000  65536\n 1 2 3\n"), "0 100000 65536;1 2 3");
    }
}
