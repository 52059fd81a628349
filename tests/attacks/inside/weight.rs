//! Bombs, each bounded by its argument, so that even without a limit it ends.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::Got;
use crate::sys;

const MIB: usize = 1024 * 1024;

pub(super) fn named(name: &str, arguments: &[&str]) -> Option<Got> {
    let number = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(match name {
        "fork_bomb" => fork_bomb(number, Duration::ZERO),
        "stubborn_fork_bomb" => fork_bomb(number, Duration::from_secs(20)),
        "memory_bomb" => memory_bomb(number),
        "memfd_bomb" => memfd_bomb(number),
        "file_bomb" => file_bomb(arguments.get(1).unwrap_or(&"."), number),
        "inode_bomb" => inode_bomb(arguments.get(1).unwrap_or(&"."), number),
        "descriptor_bomb" => descriptor_bomb(number),
        "terminal_bomb" => terminal_bomb(number),
        "flood" => flood(number),
        "spin" => spin(),
        "subreaper" => subreaper(arguments.first()?),
        _ => return None,
    })
}

/// Tries again for as long as it has patience.
fn fork_bomb(number: usize, patience: Duration) -> Got {
    let begun = std::time::Instant::now();
    let mut made = vec![];
    let outcome = loop {
        if made.len() == number {
            break Ok(format!("{number} processes"));
        }
        match sys::fork() {
            Ok(None) => {
                std::thread::sleep(Duration::from_secs(20));
                sys::exit(0)
            }
            Ok(Some(pid)) => made.push(pid),
            Err(_) if begun.elapsed() < patience => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break Err(error),
        }
    };
    for pid in made.iter().copied() {
        sys::call(libc::SYS_kill, &mut [sys::Arg::N(pid as u64), sys::Arg::N(9)])?;
        sys::wait(pid)?;
    }
    outcome
}

fn memory_bomb(mebibytes: usize) -> Got {
    let mut held = vec![];
    for _ in 0..mebibytes {
        // Filled, or the kernel would only promise it.
        held.push(vec![1_u8; MIB]);
    }
    Ok(format!("{} MiB", std::hint::black_box(&held).len()))
}

fn memfd_bomb(mebibytes: usize) -> Got {
    let mut file = File::from(memfd_create(c"bomb", MemfdFlags::NOEXEC_SEAL)?);
    for _ in 0..mebibytes {
        file.write_all(&[1; MIB])?;
    }
    Ok(format!("{mebibytes} MiB"))
}

fn file_bomb(place: &str, mebibytes: usize) -> Got {
    let path = format!("{place}/bomb");
    let mut file = File::create(&path)?;
    let outcome = (0..mebibytes).try_for_each(|_| file.write_all(&[1; MIB])).and_then(|()| file.sync_all());
    // Left where it failed: what is full stays full until somebody frees it.
    if outcome.is_ok() {
        fs::remove_file(&path)?;
    }
    outcome.map(|()| format!("{mebibytes} MiB in {place}"))
}

fn inode_bomb(place: &str, number: usize) -> Got {
    for count in 0..number {
        let directory = format!("{place}/many-{}", count / 1000);
        if count % 1000 == 0 {
            fs::create_dir_all(&directory)?;
        }
        File::create(format!("{directory}/{count}"))?;
    }
    Ok(format!("{number} files in {place}"))
}

fn descriptor_bomb(number: usize) -> Got {
    let mut held = vec![];
    for _ in 0..number {
        held.push(File::open("/dev/null")?);
    }
    Ok(format!("{} descriptors", held.len()))
}

fn terminal_bomb(number: usize) -> Got {
    let mut held = vec![];
    for _ in 0..number {
        held.push(File::options().read(true).write(true).open("/dev/ptmx")?);
    }
    Ok(format!("{} terminals", held.len()))
}

fn flood(mebibytes: usize) -> Got {
    let mut out = io::stdout().lock();
    let line = [b'x'; 1023];
    for _ in 0..mebibytes * 1024 {
        out.write_all(&line)?;
        out.write_all(b"\n")?;
    }
    Ok(format!("{mebibytes} MiB"))
}

/// Adopts the orphan it makes, and stays its parent.
fn subreaper(mark: &str) -> Got {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let script = format!("setsid sh -c 'setsid sleep {mark} & exit' & exit");
    std::process::Command::new("sh").args(["-c", &script]).status()?;
    std::thread::sleep(Duration::from_secs(600));
    Ok("it was left alone".into())
}

/// One second by the clock, as many of the processor as there are to be had.
fn spin() -> Got {
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {}
    let stat = fs::read_to_string("/proc/self/stat")?;
    // User time, in hundredths; the name before it may have blanks.
    let ticks = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(11)).and_then(|text| text.parse().ok());
    let ticks: u32 = ticks.ok_or_else(|| io::Error::other("no time"))?;
    Ok(format!("{}.{:02}", ticks / 100, ticks % 100))
}
