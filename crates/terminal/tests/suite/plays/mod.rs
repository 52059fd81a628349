//! Real programs that ask, with what must be noticed of each question and what the program makes of the answer; and
//! real ones at rest that ask nothing. Shared with the end-to-end tests, where the same programs run in sandboxes.

pub(crate) mod model;

use std::path::PathBuf;

/// What a person does about a question.
pub(crate) enum Answer {
    /// The choice with this label.
    Choice(&'static str),
    /// These words and Enter.
    Text(&'static str),
}

pub(crate) struct Step {
    /// As the kind is written: `yes_no`, `menu`, …
    pub(crate) kind: &'static str,
    /// A part of the question.
    pub(crate) question: &'static str,
    /// Labels, and the keys that are typed for them.
    pub(crate) choices: &'static [(&'static str, &'static str)],
    pub(crate) answer: Answer,
}

pub(crate) struct Play {
    pub(crate) needs: &'static [&'static str],
    /// For bash, which makes a directory of its own for what it needs.
    pub(crate) script: &'static str,
    pub(crate) steps: &'static [Step],
    /// What the program shows when it took the last answer as it was meant.
    pub(crate) sign: &'static str,
}

/// Typed where it is asked for; programs show its checksum, so that it is found nowhere unless somebody kept it.
pub(crate) const SECRET: &str = "correct-horse-7";

const fn text(question: &'static str, answer: &'static str) -> Step {
    Step { kind: "text", question, choices: &[], answer: Answer::Text(answer) }
}

const fn secret(question: &'static str) -> Step {
    Step { kind: "password", question, choices: &[], answer: Answer::Text(SECRET) }
}

pub(crate) const BASH_READ: Play = Play {
    needs: &["bash"],
    script: "read -r -p 'Deploy to production? [y/N] ' answer; echo \"took <$answer>\"; exec sleep 1000",
    steps: &[Step {
        kind: "yes_no",
        question: "Deploy to production? [y/N]",
        choices: &[("y", "y\r"), ("N", "N\r")],
        answer: Answer::Choice("y"),
    }],
    sign: "took <y>",
};

/// Read at once and without Enter: an Enter would answer the next question.
pub(crate) const BASH_READ_KEY: Play = Play {
    needs: &["bash"],
    script: "read -r -n 1 -p 'Delete it? (y/n) ' a; echo; read -r -p 'Its name: ' b; echo \"took <$a><$b>\"; exec sleep 1000",
    steps: &[
        Step {
            kind: "yes_no",
            question: "Delete it?",
            choices: &[("y", "y"), ("n", "n")],
            answer: Answer::Choice("n"),
        },
        text("Its name:", "old"),
    ],
    sign: "took <n><old>",
};

pub(crate) const BASH_SECRET: Play = Play {
    needs: &["bash", "cksum"],
    script: "read -r -s -p 'Speak, friend: ' word; echo; printf %s \"$word\" | cksum; exec sleep 1000",
    steps: &[secret("Speak, friend:")],
    sign: "3316794907 15",
};

pub(crate) const BASH_SELECT: Play = Play {
    needs: &["bash"],
    script: "echo 'Where to deploy?'; select place in staging production nowhere; do echo \"took <$place>\"; exec sleep 1000; done",
    steps: &[Step {
        kind: "menu",
        question: "Where to deploy?",
        choices: &[("staging", "1\r"), ("production", "2\r"), ("nowhere", "3\r")],
        answer: Answer::Choice("production"),
    }],
    sign: "took <production>",
};

pub(crate) const PYTHON_INPUT: Play = Play {
    needs: &["python3"],
    script: "python3 -c 'print(\"took <\" + input(\"What is your name? \") + \">\")'; exec sleep 1000",
    steps: &[text("What is your name?", "Ada Lovelace")],
    sign: "took <Ada Lovelace>",
};

/// It waits, and its timer takes two hundredths of the time meanwhile, as agents' programs do.
pub(crate) const PYTHON_TICKING: Play = Play {
    needs: &["python3"],
    script: include_str!("ticking.sh"),
    steps: &[text("What is your name?", "Ada")],
    sign: "took <Ada>",
};

pub(crate) const PYTHON_GETPASS: Play = Play {
    needs: &["python3", "cksum"],
    script: "python3 -c 'import getpass, sys; sys.stdout.write(getpass.getpass())' | cksum; exec sleep 1000",
    steps: &[secret("Password:")],
    sign: "3316794907 15",
};

pub(crate) const GIT_CREDENTIALS: Play = Play {
    needs: &["git", "cksum"],
    script: "unset GIT_ASKPASS SSH_ASKPASS; printf 'protocol=https\\nhost=git.test\\n\\n' | HOME=/nowhere GIT_CONFIG_NOSYSTEM=1 \
        git credential fill | sed -n 's/^password=//p' | tr -d '\\n' | cksum; exec sleep 1000",
    steps: &[text("Username for 'https://git.test':", "ada"), secret("Password for 'https://ada@git.test':")],
    sign: "3316794907 15",
};

pub(crate) const GIT_HUNK: Play = Play {
    needs: &["git"],
    script: "cd \"$(mktemp -d)\" && git init -q && echo a > f && git add f && echo b > f && git add -p; echo staged $(git show :f); \
        exec sleep 1000",
    steps: &[Step {
        kind: "yes_no",
        question: "Stage this hunk",
        choices: &[("y", "y\r"), ("n", "n\r"), ("q", "q\r"), ("a", "a\r"), ("d", "d\r"), ("e", "e\r"), ("?", "?\r")],
        answer: Answer::Choice("y"),
    }],
    sign: "staged b",
};

pub(crate) const SSH_KEYGEN: Play = Play {
    needs: &["ssh-keygen"],
    script: "cd \"$(mktemp -d)\" && ssh-keygen -q -t ed25519 -f key; ssh-keygen -y -P wrong -f key; exec sleep 1000",
    steps: &[secret("Enter passphrase"), secret("Enter same passphrase again")],
    sign: "incorrect passphrase",
};

pub(crate) const NPM_INIT: Play = Play {
    needs: &["npm"],
    script: "cd \"$(mktemp -d)\" && mkdir demo && cd demo && npm init",
    steps: &[text("package name: (demo)", "tide"), text("version: (1.0.0)", "7.0.0"), text("description:", "none")],
    sign: "entry point:",
};

pub(crate) const APT: Play = Play {
    needs: &["apt-get", "dpkg-deb"],
    script: include_str!("apt.sh"),
    steps: &[Step {
        kind: "yes_no",
        question: "Do you want to continue? [Y/n]",
        choices: &[("Y", "Y\r"), ("n", "n\r")],
        answer: Answer::Choice("Y"),
    }],
    sign: "Download complete and in download only mode",
};

pub(crate) const SSH: Play = Play {
    needs: &["ssh", "sshd", "ssh-keygen"],
    script: include_str!("ssh.sh"),
    steps: &[
        Step {
            kind: "yes_no",
            question: "Are you sure you want to continue connecting (yes/no/[fingerprint])?",
            choices: &[("yes", "yes\r"), ("no", "no\r"), ("fingerprint", "fingerprint\r")],
            answer: Answer::Choice("yes"),
        },
        secret("ada@build.test's password:"),
    ],
    sign: "Permission denied, please try again.",
};

/// Both need `CLAUDE` and `WISH` in their environment, and where the model is, as its vendor's packages do.
pub(crate) const CLAUDE_CODE: Play = Play {
    needs: &[],
    script: include_str!("claude.sh"),
    steps: &[Step {
        kind: "permission",
        question: "Do you want to proceed?",
        choices: &[("Yes", "1")],
        answer: Answer::Choice("Yes"),
    }],
    sign: model::THANKS,
};

/// Things to tick, on a page beside the one where that ends.
pub(crate) const CLAUDE_CODE_ASKS: Play = Play {
    needs: &[],
    script: include_str!("claude.sh"),
    steps: &[
        Step {
            kind: "menu",
            question: "Which checks should run?",
            choices: &[("[ ] Format", "1"), ("[ ] Lint", "2")],
            answer: Answer::Choice("[ ] Lint"),
        },
        Step {
            kind: "menu",
            question: "Which checks should run?",
            choices: &[("[ ] Format", "1"), ("[✔] Lint", "2")],
            answer: Answer::Choice("→ ☒ Checks  ✔ Submit"),
        },
        Step {
            kind: "menu",
            question: "Ready to submit your answers?",
            choices: &[("Submit answers", "1")],
            answer: Answer::Choice("Submit answers"),
        },
    ],
    sign: "Which checks should run? → Lint",
};

/// The program itself, where `make test-needs` put it, if it did.
pub(crate) fn claude(test: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let place = cache.join("sandbar-tests/claude/node_modules/@anthropic-ai");
    let packages = std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path().join("claude"));
    let found = packages.filter(|program| program.is_file()).min();
    if found.is_none() {
        sandbar_test_harness::missing(test, "Claude Code");
    }
    found
}

/// Shown and at rest.
pub(crate) struct Rest {
    pub(crate) needs: &'static [&'static str],
    pub(crate) script: &'static str,
    /// It is there when this is on the screen.
    pub(crate) sign: &'static str,
}

const fn rest(needs: &'static [&'static str], script: &'static str, sign: &'static str) -> Rest {
    Rest { needs, script, sign }
}

pub(crate) const VIM: Rest = rest(
    &["vim"],
    "cd \"$(mktemp -d)\" && yes 'Are you sure? (y/n)' | head -50 > asks.txt && exec vim -u NONE -N -n asks.txt",
    "\"asks.txt\" 50L",
);
pub(crate) const LESS: Rest = rest(
    &["less"],
    "cd \"$(mktemp -d)\" && yes 'Are you sure? (y/n)' | head -50 > asks.txt && LESS= exec less asks.txt",
    "asks.txt",
);
pub(crate) const HTOP: Rest = rest(&["htop"], "exec htop -d 100", "F10Quit");
pub(crate) const TMUX: Rest = rest(
    &["tmux"],
    "unset TMUX; cd \"$(mktemp -d)\"; exec tmux -u -S socket -f /dev/null new-session \"echo 'Are you sure? (y/n)'; exec cat\" \
        \\; set destroy-unattached on",
    "[0] 0:",
);
pub(crate) const BASH_PROMPT: Rest =
    rest(&["bash"], "PS1='ada@build:~$ ' exec bash --norc --noprofile -i", "ada@build:~$");
pub(crate) const PYTHON_PROMPT: Rest = rest(&["python3"], "exec python3 -q", ">>>");
pub(crate) const PRINTED: Rest =
    rest(&["bash"], "yes 'Are you sure? (y/n)' | head -50; echo the end; exec sleep 1000", "the end");
