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
        0x1_0000_5412,
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
    for name in ["workload", "absent"] {
        let ours = compile(FILTERS, name)?;
        assert!(ours.len() * 2 < reference[name].len() || name == "absent", "{} steps", ours.len());
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
