//! Filters made of arbitrary bytes: our compiler never panics, and its programs say what another compiler's say.

use bolero::check;
use serde_json::{Value, json};

use super::{tests::verdict, *};

const CALLS: [&str; 8] = ["read", "write", "open", "close", "stat", "socket", "ioctl", "openat2"];
const VALUES: [u64; 8] = [0, 1, 2, 0x5412, 0x8000_0000, 0xffff_ffff, 0x1_0000_0001, u64::MAX];

/// Bytes in the order they come; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first) % limit
    }

    fn condition(&mut self) -> Value {
        let (value, mask) = (VALUES[self.below(8)], VALUES[self.below(8)]);
        let low = u64::from(u32::MAX);
        let (width, op, value) = match self.below(5) {
            0 => ("dword", json!("eq"), value & low),
            1 => ("dword", json!("ne"), value & low),
            2 => ("dword", json!({"masked_eq": mask & low}), value & mask & low),
            3 => ("qword", json!("eq"), value),
            _ => ("qword", json!({"masked_eq": mask}), value & mask),
        };
        json!({"index": self.below(6), "type": width, "op": op, "val": value, "comment": "fuzz"})
    }

    fn rule(&mut self) -> Value {
        let call = CALLS[self.below(CALLS.len())];
        match self.below(4) {
            0 => json!({"syscall": call, "comment": "fuzz"}),
            length => {
                let args: Vec<_> = (0..length).map(|_| self.condition()).collect();
                json!({"syscall": call, "comment": "fuzz", "args": args})
            }
        }
    }
}

fn call(rule: &Value) -> String {
    rule["syscall"].to_string()
}

#[test]
fn fuzz_filter() {
    let arch = std::env::consts::ARCH.try_into().unwrap_or_else(|error| panic!("{error}"));
    check!().with_max_len(64).for_each(|bytes| {
        let mut choices = Choices(bytes);
        let mut rules = Vec::new();
        while !choices.0.is_empty() {
            rules.push(choices.rule());
        }
        // Beside a rule without conditions the others mean nothing; the other compiler forgets it instead.
        let free: Vec<_> = rules.iter().filter(|rule| rule.get("args").is_none()).map(call).collect();
        rules.retain(|rule| rule.get("args").is_none() || !free.contains(&call(rule)));
        let filter = json!({"mismatch_action": {"errno": 1}, "match_action": "allow", "filter": rules});
        let json = json!({"f": filter}).to_string();
        let ours = compile(&json, "f").unwrap_or_else(|error| panic!("{error}: {json}"));
        let theirs =
            seccompiler::compile_from_json(json.as_bytes(), arch).unwrap_or_else(|error| panic!("{error}: {json}"));
        for number in CALLS.iter().filter_map(|call| syscalls::number(call)).flat_map(|number| [number, number + 1]) {
            for value in VALUES {
                for other in VALUES {
                    let arguments = [value, other, value, other, other, value];
                    let (got, want) =
                        (verdict(&ours, OURS, number, arguments), verdict(&theirs["f"], OURS, number, arguments));
                    assert_eq!(got, want, "call {number}, arguments {arguments:x?}: {json}");
                }
            }
        }
    });
}

#[test]
fn fuzz_filter_text() {
    check!().for_each(|bytes| {
        let _either = compile(&String::from_utf8_lossy(bytes), "workload");
    });
}
