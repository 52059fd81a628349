//! The provider contract on this host, and what is special to the local provider. Without a harness: the launcher is
//! this very program, executed again. `make test` runs it as root and as an ordinary user.

mod copies;
mod corpus;
mod layers;
mod limits;
mod pod;
mod programs;
mod skills;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use sandbar_api::{Profile, Root, User, WorkspaceSource};
use sandbar_provider::{
    Error, Provider, Spec, cases,
    suite::{self, Case, Opening, Outcome, Subject, same},
};
use sandbar_provider_local::{LAUNCHER_NAME, Lifetime, Local, launcher};
use sandbar_test_harness as harness;

struct Home(PathBuf);

impl Subject for Home {
    fn open(&self) -> Opening<'_> {
        Box::pin(async {
            let local = Local::open(self.0.join("home/local"), Lifetime::Outlives).await;
            Ok(Arc::new(local.map_err(|error| format!("{error:?}"))?) as Arc<dyn Provider>)
        })
    }
}

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == LAUNCHER_NAME) {
        launcher::main();
    }
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(role) if role == "guest" => sandbar_provider_local::pod::main(arguments),
        Some(role) if role == pod::INSIDE => {
            let program = arguments.next().map(PathBuf::from).unwrap_or_default();
            return match pod::inside(&program) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => panic!("{error}"),
            };
        }
        Some(role) if role == programs::INSIDE => {
            return match programs::inside(arguments.next().map(PathBuf::from).unwrap_or_default()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => panic!("{error}"),
            };
        }
        _ => {}
    }
    let mut cases = suite::contract::<Home>();
    cases.extend(cases![
        a_bound_workspace_is_the_hosts_directory,
        sandbars_own_data_cannot_be_bound,
        a_link_in_the_place_of_a_bound_workspace_is_not_followed,
        nothing_set_user_id_comes_out_of_a_bound_workspace,
        the_guest_is_out_of_reach,
        an_image_is_a_root_of_its_own,
        the_hosts_private_files_are_not_there,
        closed_system_calls_are_closed,
        nothing_of_the_host_is_left_after_destroy,
        an_operators_umask_is_not_felt_inside,
        workloads_die_before_guests_and_guests_before_the_server,
        its_own_name_leads_to_itself,
    ]);
    cases.extend(layers::cases());
    cases.extend(limits::cases());
    cases.extend(copies::cases());
    cases.extend(skills::cases());
    cases.extend(pod::cases());
    cases.extend(programs::cases());
    let mut tests: Vec<harness::Test> = cases.into_iter().map(|case| test(case.name.to_owned(), case)).collect();
    tests.extend(corpus::cases().into_iter().map(|case| test(format!("corpus::{}", case.name), case)));
    harness::main(tests)
}

fn test(name: String, case: Case<Home>) -> harness::Test {
    harness::Test::new(name, move || run(&case))
}

/// In a home of its own, of which nothing may be left that cannot be removed.
fn run(case: &Case<Home>) -> harness::Outcome {
    if let Some(why) = (case.not_here)() {
        harness::not_run(case.name, &why);
        return Ok(());
    }
    // Images and workspaces that tests make are read by other users.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let home = Home(std::env::temp_dir().join(format!("sandbar-suite-{}", std::process::id())));
    std::fs::create_dir(&home.0)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on((case.run)(&home))?;
    drop(runtime);
    Ok(std::fs::remove_dir_all(&home.0)?)
}

fn spec(name: &str) -> Spec {
    let mut random = [0; 10];
    for (to, from) in random.iter_mut().zip(name.bytes().rev()) {
        *to = from;
    }
    Spec::standard(sandbar_api::SandboxId::from_parts(2, random), "local")
}

/// Makes the sandbox, runs the script in it, removes it.
async fn inside(home: &Home, spec: &Spec, script: &str) -> Result<String, String> {
    let provider = home.open().await?;
    provider.create(spec).await.map_err(|error| format!("{error:?}"))?;
    let guest = provider.connect(&spec.id).await.map_err(|error| format!("{error:?}"))?;
    let ran = suite::run(&guest, script).await?;
    provider.destroy(&spec.id).await.map_err(|error| format!("{error:?}"))?;
    Ok(ran.output)
}

fn said(error: Error) -> String {
    format!("{error:?}")
}

/// Why this host cannot run a case that needs root.
fn needs_root() -> Option<String> {
    (!is_root()).then(|| "needs root".to_owned())
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

fn made(path: &Path) -> Result<&Path, String> {
    std::fs::create_dir_all(path).map_err(|error| error.to_string())?;
    Ok(path)
}

async fn a_bound_workspace_is_the_hosts_directory(home: &Home) -> Outcome {
    let shared = home.0.join("shared");
    std::fs::write(made(&shared)?.join("in"), "from the host\n").map_err(|error| error.to_string())?;
    let bind = WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() };
    let spec = Spec { workspace: bind, ..spec("bind") };
    let script = "cat in; stat -c %u in; echo from inside > out; cat out";
    let output = inside(home, &spec, &format!("cd /workspace; {script}")).await?;
    same("seen inside", &output.as_str(), &"from the host\n1000\nfrom inside\n")?;
    let written = shared.join("out");
    same(
        "on the host",
        &std::fs::read_to_string(&written).map_err(|error| error.to_string())?.as_str(),
        &"from inside\n",
    )?;
    let owner = |path: &Path| std::fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::uid(&found)).ok();
    same("owner on the host", &owner(&written), &owner(&shared))
}

async fn sandbars_own_data_cannot_be_bound(home: &Home) -> Outcome {
    let provider = home.open().await?;
    for path in ["/".to_owned(), home.0.join("home/local").to_string_lossy().into_owned()] {
        let spec = Spec { workspace: WorkspaceSource::Bind { path }, ..spec("own") };
        match provider.create(&spec).await {
            Err(Error::BadSpec { .. }) => {}
            other => return Err(format!("{:?}: {other:?}", spec.workspace)),
        }
    }
    Ok(())
}

async fn a_link_in_the_place_of_a_bound_workspace_is_not_followed(home: &Home) -> Outcome {
    let (shared, secret) = (home.0.join("parent/shared"), home.0.join("parent/secret"));
    std::fs::write(made(&secret)?.join("s"), "of the host").map_err(|error| error.to_string())?;
    let bind = WorkspaceSource::Bind { path: made(&shared)?.to_string_lossy().into_owned() };
    let spec = Spec { workspace: bind, ..spec("swap") };
    let provider = home.open().await?;
    provider.create(&spec).await.map_err(|error| format!("{error:?}"))?;
    provider.stop(&spec.id).await.map_err(|error| format!("{error:?}"))?;
    // What a workload could do that can write to the parent through a workspace of its own.
    std::fs::rename(&shared, home.0.join("parent/moved")).map_err(|error| error.to_string())?;
    std::os::unix::fs::symlink(&secret, &shared).map_err(|error| error.to_string())?;
    let started = provider.start(&spec).await;
    provider.destroy(&spec.id).await.map_err(|error| format!("{error:?}"))?;
    // The control: an ordinary open follows the link.
    same("control", &shared.join("s").exists(), &true)?;
    match started {
        Err(Error::BadSpec { .. }) => Ok(()),
        other => Err(format!("started on a link: {other:?}")),
    }
}

/// Every way to make a set-user-id file, and one that makes none.
const SET_USER_ID: &str = "
import os
def attempt(name, call):
    try: call(); print(name, 'through')
    except OSError as error: print(name, error.errno)
open('f', 'w').close()
attempt('chmod', lambda: os.chmod('f', 0o4755))
attempt('setgid', lambda: os.chmod('f', 0o2755))
attempt('open', lambda: os.open('g', os.O_CREAT | os.O_WRONLY, 0o4755))
attempt('mknod', lambda: os.mknod('h', 0o104755))
attempt('plain', lambda: os.chmod('f', 0o755))
";

async fn nothing_set_user_id_comes_out_of_a_bound_workspace(home: &Home) -> Outcome {
    let shared = home.0.join("suid");
    let bind = WorkspaceSource::Bind { path: made(&shared)?.to_string_lossy().into_owned() };
    std::fs::write(shared.join("try.py"), SET_USER_ID).map_err(|error| error.to_string())?;
    let script = "cd /workspace && umask 0 && python3 try.py";
    let output = inside(home, &Spec { workspace: bind, ..spec("suid") }, script).await?;
    same("inside", &output.as_str(), &"chmod 1\nsetgid 1\nopen 1\nmknod 1\nplain through\n")?;
    // The control: without the fence each goes through.
    let control =
        std::process::Command::new("sh").args(["-c", "umask 0 && python3 try.py"]).current_dir(&shared).output();
    let control = control.map_err(|error| error.to_string())?;
    let through = "chmod through\nsetgid through\nopen through\nmknod through\nplain through\n";
    same("control", &String::from_utf8_lossy(&control.stdout).as_ref(), &through)
}

/// Whatever may be written to inside; also a name that comes late, and after a start.
async fn its_own_name_leads_to_itself(home: &Home) -> Outcome {
    let hardened = Profile::named("hardened").map(|profile| profile.layers).unwrap_or_default();
    let mut specs = vec![spec("named"), Spec { layers: hardened, ..spec("named-hard") }];
    if is_root() {
        specs.push(Spec { user: User::Root, ..spec("named-root") });
    }
    let provider = home.open().await?;
    for spec in specs {
        provider.create(&spec).await.map_err(said)?;
        for hostname in ["local", "claimed"] {
            let spec = Spec { hostname: hostname.into(), ..spec.clone() };
            if hostname != "local" {
                provider.bind(&spec).await.map_err(said)?;
            }
            named(&*provider, &spec).await?;
            provider.stop(&spec.id).await.map_err(said)?;
            provider.start(&spec).await.map_err(said)?;
            named(&*provider, &spec).await?;
        }
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

async fn named(provider: &dyn Provider, spec: &Spec) -> Outcome {
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script =
        "hostname; getent hosts \"$(hostname)\" | cut -d' ' -f1; grep -c . /etc/hosts; getent hosts localhost | wc -l";
    let wanted = format!("{}\n127.0.0.1\n3\n1\n", spec.hostname);
    let what = format!("the name in {}, layers {:?}", spec.id, spec.layers.len());
    same(&what, &suite::run(&guest, script).await?.output, &wanted)
}

/// As the kernel has it; an operator who has given everything the highest score has left no room.
async fn workloads_die_before_guests_and_guests_before_the_server(home: &Home) -> Outcome {
    let score = |process: &str| -> Result<i16, String> {
        let text =
            std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).map_err(|error| error.to_string())?;
        text.trim().parse().map_err(|_| text)
    };
    let spec = spec("oom");
    let provider = home.open().await?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let script = "cat /proc/self/oom_score_adj; (setsid sh -c 'cat /proc/self/oom_score_adj')";
    let ran = suite::run(&guest, script).await?;
    let pid = home.0.join("home/local").join(spec.id.as_str()).join("guest.pid");
    let pid = std::fs::read_to_string(pid).map_err(|error| error.to_string())?;
    let between = score(pid.split(' ').next().unwrap_or_default())?;
    provider.destroy(&spec.id).await.map_err(said)?;
    let server = score("self")?;
    let workloads: Vec<i16> = ran.output.lines().filter_map(|line| line.parse().ok()).collect();
    same("workloads", &workloads, &vec![between.max(900); 2])?;
    let ordered = server < between && between < workloads[0] || server > 800;
    if ordered { Ok(()) } else { Err(format!("server {server}, guest {between}, workload {}", workloads[0])) }
}

async fn an_operators_umask_is_not_felt_inside(home: &Home) -> Outcome {
    seen_with_a_tight_umask(home, spec("umask")).await
}

async fn seen_with_a_tight_umask(home: &Home, spec: Spec) -> Outcome {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let script = "head -n 1 /etc/passwd; cd /tmp; echo written > file; cat file; stat -c %a / /etc/hosts";
    let seen = inside(home, &spec, script).await?;
    same("seen inside", &seen.as_str(), &"root:x:0:0:root:/root:/bin/sh\nwritten\n755\n644\n")
}

/// Where there is one uid only, it is the guest's too: what the kernel grants an equal must be closed one by one.
async fn the_guest_is_out_of_reach(home: &Home) -> Outcome {
    for (attempt, want) in [
        ("kill -9 1; kill -STOP 1; echo tried", "tried\n"),
        ("prlimit --pid 1 --nofile=3 2>/dev/null && echo through || echo refused", "refused\n"),
        ("prlimit --nofile=64 true && echo own", "own\n"),
        ("ls /proc/1/fd >/dev/null 2>&1 && echo through || echo refused", "refused\n"),
        ("cat /proc/1/environ >/dev/null 2>&1 && echo through || echo refused", "refused\n"),
        (
            "{ rm /dev/ptmx || mv /dev/null /dev/x || touch /dev/y; } 2>/dev/null && echo through || echo refused",
            "refused\n",
        ),
    ] {
        let script = format!("{{ {attempt}; }} 2>/dev/null");
        same(attempt, &inside(home, &spec("reach"), &script).await?.as_str(), &want)?;
    }
    Ok(())
}

/// One static program with many names makes an image.
async fn an_image_is_a_root_of_its_own(home: &Home) -> Outcome {
    let image = home.0.join("image");
    for name in ["bin", "etc"] {
        made(&image.join(name))?;
    }
    let text = |error: std::io::Error| error.to_string();
    std::fs::write(image.join("etc/only-here"), "image\n").map_err(text)?;
    std::fs::copy("/bin/busybox", image.join("bin/busybox")).map_err(|error| format!("busybox-static: {error}"))?;
    std::os::unix::fs::symlink("busybox", image.join("bin/sh")).map_err(text)?;
    let root = Root::Image { path: image.to_string_lossy().into_owned() };
    let script = "busybox cat /etc/only-here; busybox ls /; echo changed > ~/f; busybox id -u; busybox ls /usr 2>/dev/null; echo end";
    let output = inside(home, &Spec { root, ..spec("image") }, script).await?;
    same("inside", &output.as_str(), &"image\nbin\ndev\netc\nhome\nproc\nrun\ntmp\nworkspace\n1000\nend\n")?;
    same("the image is unchanged", &image.join("home").exists(), &false)?;
    std::fs::remove_dir_all(&image).map_err(text)
}

async fn the_hosts_private_files_are_not_there(home: &Home) -> Outcome {
    let secret = home.0.join("secret");
    std::fs::write(&secret, "of the host").map_err(|error| error.to_string())?;
    let path = secret.to_string_lossy();
    let script = format!(
        "cat {path} /etc/shadow /proc/1/root{path} /proc/self/root{path} 2>&1 | grep -vc -e 'No such' -e denied"
    );
    same("readable lines", &inside(home, &spec("private"), &script).await?.as_str(), &"0\n")?;
    // The control: the same file can be read where there is no fence.
    same("control", &std::fs::read_to_string(&secret).map_err(|error| error.to_string())?.as_str(), &"of the host")
}

/// Each call is tried with a shell tool inside. The control: the same tool, in plain namespaces without the fence.
async fn closed_system_calls_are_closed(home: &Home) -> Outcome {
    for attempt in [
        "unshare --user true",
        "unshare --mount true",
        "mount -t tmpfs none /tmp",
        "chroot / true",
        "hostname other",
        "setpriv --reuid 0 true",
    ] {
        let script = format!("PATH=$PATH:/usr/sbin:/sbin; {attempt} >/dev/null 2>&1 && echo through || echo refused");
        let output = inside(home, &spec("closed"), &script).await?;
        same(attempt, &output.as_str(), &"refused\n")?;
        let control = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--uts", "sh", "-c", &script])
            .output()
            .map_err(|error| error.to_string())?;
        same(&format!("control of {attempt}"), &String::from_utf8_lossy(&control.stdout).as_ref(), &"through\n")?;
    }
    Ok(())
}

async fn nothing_of_the_host_is_left_after_destroy(home: &Home) -> Outcome {
    let count = || -> Result<usize, String> {
        Ok(std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?.lines().count())
    };
    let before = count()?;
    let deep = "cd /workspace; i=0; while [ $i -lt 300 ]; do mkdir d && cd d; i=$((i+1)); done; chmod 0 /workspace/d; mkfifo /tmp/p; ln -s / /workspace/root; echo made";
    same("made", &inside(home, &spec("left"), deep).await?.as_str(), &"made\n")?;
    same("mounts", &count()?, &before)?;
    let entries = std::fs::read_dir(home.0.join("home/local")).map_err(|error| error.to_string())?.flatten();
    let ours = |name: &str| name.starts_with("base-") || name == "layers";
    let left: Vec<_> = entries.filter(|entry| !ours(&entry.file_name().to_string_lossy())).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("files were left: {left:?}")) }
}
