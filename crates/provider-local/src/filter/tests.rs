//! Our programs against those of another compiler, run by an interpreter, for every system call and telling arguments.

use super::*;

const FILTERS: &str = include_str!("../../fence/seccomp.json");

/// What the kernel would do with this program and this call.
pub(super) fn verdict(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let (mut at, mut register) = (0, 0u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |yes: bool| usize::from(if yes { jt } else { jf });
        match code {
            LOAD => {
                register = match k {
                    NUMBER => number,
                    ARCHITECTURE => architecture,
                    offset => {
                        let argument = arguments[((offset - ARGUMENTS) / 8) as usize];
                        if (offset - ARGUMENTS).is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
                    }
                }
            }
            AND => register &= k,
            EQUAL => at += jump(register == k),
            AT_LEAST => at += jump(register >= k),
            JUMP => at += k as usize,
            RETURN => return k,
            // The other compiler uses one more comparison.
            0x25 => at += jump(register > k),
            other => panic!("unknown step {other:#x}"),
        }
    }
}

#[test]
fn every_call_gets_the_verdict_that_another_compiler_gives_it() -> Result<(), BadFilter> {
    let arch = std::env::consts::ARCH.try_into().unwrap_or_else(|error| panic!("{error}"));
    let reference = seccompiler::compile_from_json(FILTERS.as_bytes(), arch).unwrap_or_else(|error| panic!("{error}"));
    let telling = [
        0,
        1,
        2,
        0x10,
        10,
        16,
        0x40,
        0o644,
        0o4755,
        0o2755,
        0o6777,
        0x5412,
        0x541c,
        0x5413,
        0x5423,
        0x1_0000_5412,
        6,
        17,
        31,
        58,
        262,
        0x1000_0000,
        0x0002_0000,
        0x1_1000_0000,
        0x40_0000,
        0x40_0040,
        0x20000,
        0x40000,
        u64::from(u32::MAX),
        u64::MAX,
    ];
    for name in ["workload", "absent", "unsupported"] {
        let ours = compile(FILTERS, name)?;
        assert!(ours.len() * 2 < reference[name].len() || name != "workload", "{} steps", ours.len());
        let numbers = (0..600).chain([0x4000_0000, 0x4000_0001, 0x4000_01ff, u32::MAX]);
        for number in numbers {
            for position in 0..4 {
                for first in telling {
                    for second in [0, 0x5412, 0o4755, 0x40] {
                        let mut arguments = [second; 6];
                        arguments[position] = first;
                        for architecture in [OURS, 0x4000_0003] {
                            let want = verdict(&reference[name], architecture, number, arguments);
                            let got = verdict(&ours, architecture, number, arguments);
                            assert_eq!(got, want, "{name}: call {number}, arguments {arguments:x?}");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// What becomes of a call under the filters of a guest: of those that refuse it, the one installed last says how.
fn answer(filters: &[BpfProgram], call: i64, arguments: [u64; 6]) -> Option<i32> {
    let mut verdicts = filters.iter().rev().map(|filter| verdict(filter, OURS, call as u32, arguments));
    let refused = verdicts.find(|verdict| *verdict != libc::SECCOMP_RET_ALLOW)?;
    Some((refused & libc::SECCOMP_RET_DATA) as i32)
}

#[test]
fn rare_protocols_look_absent_and_the_usual_ones_are_there() -> Result<(), BadFilter> {
    let filters = [compile(FILTERS, "workload")?, compile(FILTERS, "unsupported")?, compile(FILTERS, "pretended")?];
    let socket = |family, kind, protocol| answer(&filters, libc::SYS_socket, [family, kind, protocol, 0, 0, 0]);
    let (stream, datagram, packets) = (1, 2, 5);
    for family in [2, 10] {
        for (kind, protocol) in [(stream, 0), (stream, 6), (datagram, 0), (datagram, 17), (0o2000000 | stream, 6)] {
            assert_eq!(socket(family, kind, protocol), None, "family {family}, type {kind}, protocol {protocol}");
        }
        // MPTCP, also by bits that the kernel ignores, SMC over IP, SCTP, UDP-Lite, L2TP, DCCP.
        for (kind, protocol) in [
            (stream, 262),
            (stream, 1 << 40 | 262),
            (stream, 256),
            (stream, 132),
            (packets, 132),
            (datagram, 136),
            (datagram, 115),
            (6, 33),
        ] {
            let got = socket(family, kind, protocol);
            assert_eq!(got, Some(libc::EPROTONOSUPPORT), "family {family}, type {kind}, protocol {protocol}");
        }
    }
    assert_eq!((socket(2, datagram, 1), socket(10, datagram, 58)), (None, None), "ICMP");
    assert_eq!(socket(43, stream, 0), Some(libc::EPERM), "AF_SMC");
    let option = |level, name| answer(&filters, libc::SYS_setsockopt, [3, level, name, 0, 0, 0]);
    assert_eq!(option(6, 31), Some(libc::EPROTONOSUPPORT), "TCP_ULP");
    // TCP_NODELAY, SO_REUSEADDR, and 31 at another level.
    assert_eq!((option(6, 1), option(1, 2), option(1, 31)), (None, None, None));
    let terminal = |request| answer(&filters, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
    assert_eq!((terminal(0x5423), terminal(1 << 32 | 0x5423)), (Some(libc::EPERM), Some(libc::EPERM)), "TIOCSETD");
    assert_eq!((terminal(0x5424), terminal(0x5413)), (None, None), "TIOCGETD, TIOCGWINSZ");
    Ok(())
}

#[test]
fn what_is_not_understood_is_refused() {
    let filter = |rules: &str| {
        format!(r#"{{"f": {{"mismatch_action": {{"errno": 1}}, "match_action": "allow", "filter": [{rules}]}}}}"#)
    };
    assert!(compile(&filter(r#"{"syscall": "read", "comment": "x"}"#), "f").is_ok());
    for bad in [
        r#"{"syscall": "read"}"#,
        r#"{"syscall": "raed", "comment": "x"}"#,
        r#"{"syscall": "read", "comment": "x", "agrs": []}"#,
        r#"{"syscall": "read", "comment": "x", "args": [{"index": 6, "type": "dword", "op": "eq", "val": 0, "comment": "x"}]}"#,
        r#"{"syscall": "read", "comment": "x", "args": [{"index": 0, "type": "dword", "op": "eq", "val": 4294967296, "comment": "x"}]}"#,
        r#"{"syscall": "read", "comment": "x", "args": [{"index": 0, "type": "qword", "op": {"masked_eq": 1}, "val": 2, "comment": "x"}]}"#,
    ] {
        assert!(compile(&filter(bad), "f").is_err(), "{bad}");
    }
    assert!(compile(&filter(""), "other").is_err());
}
