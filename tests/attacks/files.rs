//! What can be seen, reached and changed of the host's files from inside.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandbar_api::{Code, CreateSandbox, WorkspaceSource};

use crate::{
    attack::{
        Attack, Class,
        Control::{self, Host, NotRun, PerUser, Template, Unshared, Without},
        Finding, act,
    },
    stage::{SECRET, Stage, Target, request},
    support::Outcome,
};

/// Root has another owner for /etc; an ordinary user has one uid for all, and Landlock alone between it and /etc.
const ETC_CONTROL: Control = PerUser(
    &Template("profile = \"standard\"\nuser = \"root\"\n"),
    &Without(&["landlock", "read_only_root", "no_exec"]),
);
const ORDINARY: Control = NotRun("an ordinary user may not do it on the host either");

pub(crate) fn all() -> Vec<Attack> {
    let shell = |name, script, control| Attack::shell(Class::Files, name, script, control);
    let probe = |name, contained, control| Attack::probe(Class::Files, name, contained, control);
    let doing = |name, act, control| Attack::act(Class::Files, name, act, control);
    vec![
        shell("private_file_of_the_host", PRIVATE, Host),
        shell("shadow_of_the_host", SHADOW, Host),
        shell("home_and_database", HOME, Host),
        shell("mounts_of_the_host", MOUNTS, Host),
        shell("sys", "[ -e /sys/kernel ] && echo escaped: $(ls /sys) || echo contained: there is no /sys", Host),
        shell("sockets_of_the_host", SOCKETS, Host),
        shell("devices_of_the_host", DEVICES, Host),
        shell("cwd_leads_out", CWD, Host),
        shell(
            "write_to_usr",
            "touch /usr/attack 2>/dev/null && rm /usr/attack && echo escaped: /usr can be written || echo contained: read-only",
            PerUser(&Host, &ORDINARY),
        ),
        shell("write_to_etc", ETC, ETC_CONTROL),
        shell("proc_sys", PROC_SYS, PerUser(&Host, &ORDINARY)),
        shell("proc_sys", PROC_SYS, PerUser(&Host, &ORDINARY)).by_root(),
        shell("kernel_files_in_proc", KERNEL, PerUser(&Host, &ORDINARY)),
        shell("kernel_files_in_proc", KERNEL, PerUser(&Host, &ORDINARY)).by_root(),
        shell("private_file_of_the_host", PRIVATE, Host).by_root(),
        doing("shadow_of_the_host", act!(shadow), Control::Act("on the host", act!(shadow_on_host))).by_root(),
        doing("change_of_the_hosts_programs", act!(programs), Control::Act("inside", act!(programs_inside))).by_root(),
        probe("device_node", "EPERM|EACCES", PerUser(&Host, &ORDINARY)).by_root(),
        probe("proc_self_mem", "EACCES", Without(&["landlock"])).by_root(),
        probe("set_user_id", "EPERM", Without(&["seccomp"])).by_root(),
        shell("addresses_of_the_kernel", ADDRESSES, PerUser(&Host, &ORDINARY)),
        probe("descriptors", "only 0, 1 and 2", Control::Act("with one descriptor left open", act!(left_open))),
        probe("proc_self_mem", "EACCES", Without(&["landlock"])),
        probe("proc_self_mem_to_usr", "EACCES|EROFS|EPERM", Without(&["landlock"])),
        probe("device_node", "EPERM|EACCES", PerUser(&Host, &ORDINARY)),
        probe("landlock_by_rename", "EXDEV|EACCES|EROFS", ETC_CONTROL),
        probe("landlock_by_hard_link", "EXDEV|EACCES|EROFS|EPERM", ETC_CONTROL),
        probe("set_user_id", "EPERM", Without(&["seccomp"])),
        shell("hard_link_to_another_users_file", LINK, Unshared),
        shell("execute_from_tmp", EXECUTE, Template("profile = \"standard\"\n")).on(&["hardened"]),
        shell("execute_by_the_loader", LOADER, Template("profile = \"standard\"\n")).on(&["hardened"]),
        probe("memfd_exec", "ENOSYS|EACCES|EPERM", Template("profile = \"standard\"\n")).on(&["hardened"]),
        shell("write_to_the_root", ROOT, Template("profile = \"standard\"\n")).on(&["hardened"]),
        doing("link_in_a_bound_workspace", act!(link_in_workspace), Control::Act("on the host", act!(link_on_host))),
        doing("bound_workspace_swapped_for_a_link", act!(swapped), Control::Act("unchanged", act!(not_swapped))),
        doing("root_prepared_for_the_next_start", act!(prepared), Control::Act("on the host", act!(prepared_on_host)))
            .on(&["standard"]),
        doing("binding_sandbars_own_files", act!(bind_own), Control::Act("another directory", act!(bind_other))),
        doing("cwd_by_descriptor", act!(cwd_by_descriptor), Control::Act("on the host", act!(cwd_on_host))),
    ]
}

/// By its path and by every magic link that leads to a root.
const PRIVATE: &str = "for way in '' /proc/self/root /proc/1/root /proc/$PPID/root /proc/self/cwd/../../../..; do
  cat \"$way$SECRET\" 2>/dev/null && { echo \"escaped: read by $way\"; exit; }
done; echo contained: not there";

const SHADOW: &str = "for file in /etc/shadow /etc/gshadow /etc/sudoers /root/.ssh /etc/ssh /etc/machine-id; do
  [ -e $file ] && { echo escaped: $file is there; exit; }
done; echo contained: none is there";

/// Of Sandbar there are certificates inside, and what names them.
const HOME: &str =
    "if [ -e \"$SANDBAR_HOME\" ] || [ -e \"$SCRATCH\" ] || [ -e /var/lib/sandbar ] || ls -A /run/sandbar 2>/dev/null | grep -qvE '^(ca.pem|ca-certificates.crt|apt.conf)$'; then
  echo escaped: Sandbar\\'s files are there; else echo contained: not there; fi";

/// Everything that is mounted is one of these.
const MOUNTS: &str = "others=$(cut -d' ' -f5 /proc/self/mountinfo | grep -vE '^/($|proc|dev|tmp|run|usr|bin|sbin|lib|workspace|etc/(alternatives|fonts|hosts|pki|ssl)|home|root|var|opt|srv|mnt|media)' || true)
deep=$(cut -d' ' -f5 /proc/self/mountinfo | grep -E '^/(run|var|home|root|opt|srv|mnt|media)/.' | grep -vE '^/home/agent$|^/var/tmp$' || true)
[ -n \"$others$deep\" ] && echo escaped: $others $deep || echo contained: nothing but its own";

const SOCKETS: &str = "found=$(find \"$SCRATCH\" /run /var /tmp /dev /home -xdev -type s 2>/dev/null | head -n 1)
[ -n \"$found\" ] && echo \"escaped: $found\" || echo contained: no socket in any directory";

const DEVICES: &str = "others=$(find /dev -xdev '(' -type b -o -type c ')' 2>/dev/null | grep -vE '/(null|zero|full|random|urandom|tty|pts/.*|ptmx)$' | head -n 3)
[ -n \"$others\" ] && echo escaped: $others || echo contained: six harmless devices";

const CWD: &str = "cd / && i=0; while [ $i -lt 64 ]; do cd ..; i=$((i+1)); done
[ -e \".$SECRET\" ] && echo \"escaped: .$SECRET\" || echo contained: the root is the root";

const ETC: &str = "if (echo x >> /etc/hosts) 2>/dev/null; then echo escaped: /etc/hosts was changed; else echo contained: refused; fi";

const PROC_SYS: &str = "for file in kernel/core_pattern kernel/modprobe kernel/panic vm/overcommit_memory fs/suid_dumpable kernel/randomize_va_space; do
  [ -e /proc/sys/$file ] && (exec 3>>/proc/sys/$file) 2>/dev/null && { echo escaped: $file can be written; exit; }
done; echo contained: none can be written";

const KERNEL: &str = "for file in kcore kmsg kpageflags kpagecount kpagecgroup sysrq-trigger timer_list sched_debug vmallocinfo slabinfo config.gz.none latency_stats; do
  [ -e /proc/$file ] || continue
  case $file in sysrq-trigger) (exec 3>>/proc/$file) 2>/dev/null ;; *) (exec 3</proc/$file) 2>/dev/null ;; esac && { echo escaped: $file; exit; }
done; echo contained: none can be opened";

const ADDRESSES: &str = "found=$(cat /proc/kallsyms /proc/modules 2>/dev/null | grep -m 1 -E 'ffff[0-9a-f]{12}')
[ -n \"$found\" ] && echo escaped: $found || echo contained: all are zero";

/// A file of somebody else, of the same filesystem as where the link would be.
const LINK: &str = "if [ -e /workspace ]; then ln /etc/passwd /var/tmp/linked; else touch mine; ln mine linked; fi 2>/dev/null && echo escaped: linked || echo contained: refused";

const EXECUTE: &str = "for place in /tmp /run /dev/shm /home/agent /var/tmp; do
  cp /usr/bin/true $place/program 2>/dev/null && $place/program 2>/dev/null && { echo escaped: from $place; exit; }
done; echo contained: from none";

const LOADER: &str = "cp /usr/bin/true /tmp/loaded || exit
loader=$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
[ -n \"$loader\" ] || { echo not run: there is no loader; exit; }
$loader /tmp/loaded 2>/dev/null && echo escaped: $loader ran it || echo contained: it was not mapped";

const ROOT: &str = "for place in / /etc /var /var/tmp /var/lib /opt /srv /mnt; do
  (touch $place/attack) 2>/dev/null && { rm $place/attack; echo escaped: $place; exit; }
done; echo contained: nothing can be written";

pub(crate) async fn left_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = stage.sh(target, "exec 9</etc/passwd; exec /workspace/attacks --inside descriptors").await?;
    Finding::parse(&ran.stdout).ok_or_else(|| ran.stderr.into())
}

/// Root inside may have one of its own for its package manager.
async fn shadow(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let Ok(host) = std::fs::read_to_string("/etc/shadow") else {
        return Ok(Finding::not_run("this user cannot read the host's either"));
    };
    let ran = stage.sh(target, "cat /etc/shadow /proc/1/root/etc/shadow").await?;
    let leaked = host.lines().filter(|line| line.len() > 30).find(|line| ran.stdout.contains(line));
    Ok(match leaked {
        Some(_) => Finding::escaped("a line of it was read"),
        None => Finding::contained(format!("{} bytes of its own", ran.stdout.len())),
    })
}

async fn shadow_on_host(_: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(Finding::escaped(format!("{} bytes were read", std::fs::read("/etc/shadow")?.len())))
}

const CHANGE: &str = "echo x > /usr/bin/sandbar-attack && cat /usr/bin/sandbar-attack";

/// What root inside does to programs stays inside.
async fn programs(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = stage.sh(target, CHANGE).await?;
    let hit = std::path::Path::new("/usr/bin/sandbar-attack").exists();
    Ok(if hit {
        Finding::escaped("the host has it")
    } else {
        Finding::contained(format!("inside: {}", ran.stdout.trim()))
    })
}

async fn programs_inside(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if !stage.is_root {
        return Ok(Finding::not_run("the host's programs belong to another uid than an ordinary user can give"));
    }
    let ran = stage.sh(target, CHANGE).await?;
    Ok(if ran.stdout == "x\n" { Finding::escaped("it was changed") } else { Finding::contained(ran.stderr) })
}

/// The host follows it; the sandbox has another root.
async fn link_in_workspace(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let link = target.shared.join("out");
    if !link.is_symlink() {
        symlink(stage.secret(), &link)?;
    }
    let ran = stage.sh(target, "cat out").await?;
    Ok(if ran.stdout.contains(SECRET) {
        Finding::escaped("it was read")
    } else {
        Finding::contained(ran.stderr.trim())
    })
}

async fn link_on_host(_: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(match std::fs::read_to_string(target.shared.join("out")) {
        Ok(text) if text == SECRET => Finding::escaped("it was read"),
        other => Finding::contained(format!("{other:?}")),
    })
}

async fn swapped(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, true).await
}

async fn not_swapped(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, false).await
}

/// Stopped, its workspace perhaps exchanged for a link, and started again.
async fn restarted(stage: &Stage, target: &Target, swap: bool) -> Outcome<Finding> {
    let text = crate::stage::recipe(target.profile, "", &[]);
    let victim = stage.fresh(target.profile, &text).await?;
    stage.client.stop(&victim.id).await?;
    let outside = stage.directory("outside")?;
    std::fs::write(outside.join("seen"), SECRET)?;
    if swap {
        std::fs::rename(&victim.shared, victim.shared.with_extension("moved"))?;
        symlink(&outside, &victim.shared)?;
    }
    let started = stage.client.start(&victim.id).await;
    let found = match started {
        Err(error) => Finding::contained(format!("{:?}: {error}", error.code())),
        Ok(_) if swap => match stage.sh(&victim, "cat /workspace/seen").await?.stdout {
            text if text.contains(SECRET) => Finding::escaped("the link was followed"),
            _ => Finding::contained("the link was not followed"),
        },
        Ok(_) => Finding::escaped("it started"),
    };
    stage.delete(&victim).await?;
    Ok(found)
}

/// Whatever can be moved away is a link to the host's directory when the sandbox is built again.
const PREPARE: &str =
    "for place in /home /root /opt /srv /mnt /media /var /etc/ssl /etc/alternatives /etc/fonts /tmp /run; do
  mv $place /var/tmp/was-$(basename $place) 2>/dev/null || rm -rf $place 2>/dev/null; ln -sfn \"$1\" $place 2>/dev/null
done; readlink /srv /opt /media /home | sort -u | wc -l";

/// Without Landlock, as the owner of the root: the worst that a sandbox can do to its own.
async fn prepared(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let with = if stage.is_root { "user = \"root\"\n" } else { "" };
    let victim = stage.fresh("standard", &crate::stage::recipe("standard", with, &["landlock"])).await?;
    let outside = stage.directory("outside")?;
    std::fs::write(outside.join("file"), SECRET)?;
    let linked = stage.exec(&victim, &["sh", "-c", PREPARE, "sh", &outside.to_string_lossy()]).await?.stdout;
    if linked.trim() == "0" {
        return Err("nothing could be prepared".into());
    }
    stage.client.stop(&victim.id).await?;
    let started = stage.client.start(&victim.id).await;
    let read = match &started {
        Ok(_) => stage.sh(&victim, "cat /srv/file /opt/file /home/file /var/file /etc/ssl/file").await?.stdout,
        Err(_) => String::new(),
    };
    stage.delete(&victim).await?;
    let names: Vec<_> = std::fs::read_dir(&outside)?.flatten().map(|entry| entry.file_name()).collect();
    Ok(match (read.contains(SECRET), names.len()) {
        (false, 1) => Finding::contained(format!("{} started again: {}", linked.trim(), started.is_ok())),
        _ => Finding::escaped(format!("read {read:?}, in the host's directory: {names:?}")),
    })
}

async fn prepared_on_host(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (root, outside) = (stage.directory("root")?, stage.directory("outside")?);
    symlink(&outside, root.join("home"))?;
    std::fs::create_dir(root.join("home/agent"))?;
    let hit = outside.join("agent").exists();
    Ok(if hit { Finding::escaped("what builds by path builds there") } else { Finding::contained("it did not") })
}

async fn bind_own(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let home = stage.server.home.path();
    for path in [home.to_path_buf(), home.join("local"), home.join("templates"), stage.scratch.clone(), "/".into()] {
        match bind(stage, &path).await {
            Err(sandbar_client::Error::Problem(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(id) => {
                stage.client.delete(&id).await?;
                return Ok(Finding::escaped(format!("{} was bound", path.display())));
            }
        }
    }
    Ok(Finding::contained("each was refused"))
}

async fn bind_other(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let id = bind(stage, &stage.directory("ordinary")?).await?;
    stage.client.delete(&id).await?;
    Ok(Finding::escaped("it was bound"))
}

async fn bind(stage: &Stage, path: &std::path::Path) -> sandbar_client::Result<String> {
    let workspace = WorkspaceSource::Bind { path: path.to_string_lossy().into_owned() };
    let made = stage.client.create(&CreateSandbox { workspace, ..CreateSandbox::default() }, None).await?;
    Ok(made.sandbox.id.to_string())
}

/// CVE-2024-21626: a directory of the host that was left open becomes the working directory.
async fn cwd_by_descriptor(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut refused = 0;
    for number in 0..32 {
        let script = format!(
            "[ -e ./home/sandbar.sock ] || [ -e ../../..{} ] && echo escaped || echo inside",
            stage.secret().display()
        );
        let mut request = request(&["sh", "-c", &script]);
        request.cwd = Some(format!("/proc/self/fd/{number}"));
        match stage.client.exec(&target.id, &request).await {
            Ok(ran) if ran.stdout.contains("escaped") => return Ok(Finding::escaped(format!("descriptor {number}"))),
            Ok(_) => {}
            Err(error) if error.code().is_some_and(|code| code != Code::Internal) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Finding::contained(format!("{refused} of 32 descriptors are no directory, the others lead nowhere")))
}

async fn cwd_on_host(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let script = "exec 7<\"$1\"; cd /proc/self/fd/7 && [ -e ./home/sandbar.sock ]";
    let ran = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(&stage.scratch).status()?;
    Ok(if ran.success() { Finding::escaped("descriptor 7") } else { Finding::contained("no") })
}

/// Set-user-id on the host is what a bound workspace must never get.
pub(crate) fn is_set_user_id(path: &std::path::Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o6000 != 0)
}
