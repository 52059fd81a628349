//! Names of system calls to their numbers on this architecture, for those the fence's filters mention.

macro_rules! numbers {
    ($($name:ident=$constant:ident)*) => {
        pub(crate) fn number(name: &str) -> Option<u32> {
            let number = match name {
                $(stringify!($name) => libc::$constant,)*
                // Newer than the constants above.
                "io_pgetevents" => 333,
                "cachestat" => 451,
                "map_shadow_stack" => 453,
                "futex_wake" => 454,
                "futex_wait" => 455,
                "futex_requeue" => 456,
                _ => return None,
            };
            u32::try_from(number).ok()
        }
    };
}

numbers! {
    accept=SYS_accept accept4=SYS_accept4 access=SYS_access alarm=SYS_alarm arch_prctl=SYS_arch_prctl
    bind=SYS_bind brk=SYS_brk capget=SYS_capget capset=SYS_capset chdir=SYS_chdir
    chmod=SYS_chmod chown=SYS_chown clock_getres=SYS_clock_getres clock_gettime=SYS_clock_gettime
    clock_nanosleep=SYS_clock_nanosleep clone=SYS_clone clone3=SYS_clone3 close=SYS_close
    close_range=SYS_close_range connect=SYS_connect copy_file_range=SYS_copy_file_range creat=SYS_creat
    dup=SYS_dup dup2=SYS_dup2 dup3=SYS_dup3 epoll_create=SYS_epoll_create epoll_create1=SYS_epoll_create1
    epoll_ctl=SYS_epoll_ctl epoll_pwait=SYS_epoll_pwait epoll_pwait2=SYS_epoll_pwait2 epoll_wait=SYS_epoll_wait
    eventfd=SYS_eventfd eventfd2=SYS_eventfd2 execve=SYS_execve execveat=SYS_execveat exit=SYS_exit
    exit_group=SYS_exit_group faccessat=SYS_faccessat faccessat2=SYS_faccessat2 fadvise64=SYS_fadvise64
    fallocate=SYS_fallocate fchdir=SYS_fchdir fchmod=SYS_fchmod fchmodat=SYS_fchmodat fchmodat2=SYS_fchmodat2
    fchown=SYS_fchown fchownat=SYS_fchownat fcntl=SYS_fcntl fdatasync=SYS_fdatasync fgetxattr=SYS_fgetxattr
    flistxattr=SYS_flistxattr flock=SYS_flock fork=SYS_fork fremovexattr=SYS_fremovexattr
    fsetxattr=SYS_fsetxattr fstat=SYS_fstat fstatfs=SYS_fstatfs fsync=SYS_fsync ftruncate=SYS_ftruncate
    futex=SYS_futex futex_waitv=SYS_futex_waitv
    futimesat=SYS_futimesat get_mempolicy=SYS_get_mempolicy
    get_robust_list=SYS_get_robust_list get_thread_area=SYS_get_thread_area getcpu=SYS_getcpu getcwd=SYS_getcwd
    getdents=SYS_getdents getdents64=SYS_getdents64 getegid=SYS_getegid geteuid=SYS_geteuid getgid=SYS_getgid
    getgroups=SYS_getgroups getitimer=SYS_getitimer getpeername=SYS_getpeername getpgid=SYS_getpgid
    getpgrp=SYS_getpgrp getpid=SYS_getpid getppid=SYS_getppid getpriority=SYS_getpriority
    getrandom=SYS_getrandom getresgid=SYS_getresgid getresuid=SYS_getresuid getrlimit=SYS_getrlimit
    getrusage=SYS_getrusage getsid=SYS_getsid getsockname=SYS_getsockname getsockopt=SYS_getsockopt
    gettid=SYS_gettid gettimeofday=SYS_gettimeofday getuid=SYS_getuid getxattr=SYS_getxattr
    inotify_add_watch=SYS_inotify_add_watch inotify_init=SYS_inotify_init inotify_init1=SYS_inotify_init1
    inotify_rm_watch=SYS_inotify_rm_watch io_cancel=SYS_io_cancel io_destroy=SYS_io_destroy
    io_getevents=SYS_io_getevents io_setup=SYS_io_setup io_submit=SYS_io_submit
    ioctl=SYS_ioctl ioprio_get=SYS_ioprio_get ioprio_set=SYS_ioprio_set kill=SYS_kill
    landlock_add_rule=SYS_landlock_add_rule landlock_create_ruleset=SYS_landlock_create_ruleset
    landlock_restrict_self=SYS_landlock_restrict_self lchown=SYS_lchown lgetxattr=SYS_lgetxattr link=SYS_link
    linkat=SYS_linkat listen=SYS_listen listxattr=SYS_listxattr llistxattr=SYS_llistxattr
    lremovexattr=SYS_lremovexattr lseek=SYS_lseek lsetxattr=SYS_lsetxattr lstat=SYS_lstat madvise=SYS_madvise
    mbind=SYS_mbind membarrier=SYS_membarrier
    memfd_create=SYS_memfd_create mincore=SYS_mincore mkdir=SYS_mkdir mkdirat=SYS_mkdirat mknod=SYS_mknod
    mknodat=SYS_mknodat mlock=SYS_mlock mlock2=SYS_mlock2 mlockall=SYS_mlockall mmap=SYS_mmap
    mprotect=SYS_mprotect mq_getsetattr=SYS_mq_getsetattr mq_notify=SYS_mq_notify mq_open=SYS_mq_open
    mq_timedreceive=SYS_mq_timedreceive mq_timedsend=SYS_mq_timedsend mq_unlink=SYS_mq_unlink mremap=SYS_mremap
    mseal=SYS_mseal msgctl=SYS_msgctl msgget=SYS_msgget msgrcv=SYS_msgrcv msgsnd=SYS_msgsnd msync=SYS_msync
    munlock=SYS_munlock munlockall=SYS_munlockall munmap=SYS_munmap nanosleep=SYS_nanosleep
    newfstatat=SYS_newfstatat open=SYS_open openat=SYS_openat openat2=SYS_openat2 pause=SYS_pause
    personality=SYS_personality pidfd_open=SYS_pidfd_open pidfd_send_signal=SYS_pidfd_send_signal pipe=SYS_pipe
    pipe2=SYS_pipe2 pkey_alloc=SYS_pkey_alloc pkey_free=SYS_pkey_free pkey_mprotect=SYS_pkey_mprotect
    poll=SYS_poll ppoll=SYS_ppoll prctl=SYS_prctl pread64=SYS_pread64 preadv=SYS_preadv preadv2=SYS_preadv2
    prlimit64=SYS_prlimit64 process_madvise=SYS_process_madvise process_mrelease=SYS_process_mrelease
    pselect6=SYS_pselect6 pwrite64=SYS_pwrite64 pwritev=SYS_pwritev pwritev2=SYS_pwritev2 read=SYS_read
    readahead=SYS_readahead readlink=SYS_readlink readlinkat=SYS_readlinkat readv=SYS_readv
    recvfrom=SYS_recvfrom recvmmsg=SYS_recvmmsg recvmsg=SYS_recvmsg remap_file_pages=SYS_remap_file_pages
    removexattr=SYS_removexattr rename=SYS_rename renameat=SYS_renameat renameat2=SYS_renameat2
    restart_syscall=SYS_restart_syscall rmdir=SYS_rmdir rseq=SYS_rseq rt_sigaction=SYS_rt_sigaction
    rt_sigpending=SYS_rt_sigpending rt_sigprocmask=SYS_rt_sigprocmask rt_sigqueueinfo=SYS_rt_sigqueueinfo
    rt_sigreturn=SYS_rt_sigreturn rt_sigsuspend=SYS_rt_sigsuspend rt_sigtimedwait=SYS_rt_sigtimedwait
    rt_tgsigqueueinfo=SYS_rt_tgsigqueueinfo sched_get_priority_max=SYS_sched_get_priority_max
    sched_get_priority_min=SYS_sched_get_priority_min sched_getaffinity=SYS_sched_getaffinity
    sched_getattr=SYS_sched_getattr sched_getparam=SYS_sched_getparam sched_getscheduler=SYS_sched_getscheduler
    sched_rr_get_interval=SYS_sched_rr_get_interval sched_setaffinity=SYS_sched_setaffinity
    sched_setattr=SYS_sched_setattr sched_setparam=SYS_sched_setparam sched_setscheduler=SYS_sched_setscheduler
    sched_yield=SYS_sched_yield seccomp=SYS_seccomp select=SYS_select semctl=SYS_semctl semget=SYS_semget
    semop=SYS_semop semtimedop=SYS_semtimedop sendfile=SYS_sendfile sendmmsg=SYS_sendmmsg sendmsg=SYS_sendmsg
    sendto=SYS_sendto set_mempolicy=SYS_set_mempolicy set_mempolicy_home_node=SYS_set_mempolicy_home_node
    set_robust_list=SYS_set_robust_list set_thread_area=SYS_set_thread_area set_tid_address=SYS_set_tid_address
    sethostname=SYS_sethostname setfsgid=SYS_setfsgid setfsuid=SYS_setfsuid setgid=SYS_setgid setgroups=SYS_setgroups
    setitimer=SYS_setitimer setpgid=SYS_setpgid setpriority=SYS_setpriority setregid=SYS_setregid
    setresgid=SYS_setresgid setresuid=SYS_setresuid setreuid=SYS_setreuid setrlimit=SYS_setrlimit
    setsid=SYS_setsid setsockopt=SYS_setsockopt setuid=SYS_setuid setxattr=SYS_setxattr shmat=SYS_shmat
    shmctl=SYS_shmctl shmdt=SYS_shmdt shmget=SYS_shmget shutdown=SYS_shutdown sigaltstack=SYS_sigaltstack
    signalfd=SYS_signalfd signalfd4=SYS_signalfd4 socket=SYS_socket socketpair=SYS_socketpair splice=SYS_splice
    stat=SYS_stat statfs=SYS_statfs statx=SYS_statx symlink=SYS_symlink symlinkat=SYS_symlinkat sync=SYS_sync
    sync_file_range=SYS_sync_file_range syncfs=SYS_syncfs sysinfo=SYS_sysinfo tee=SYS_tee tgkill=SYS_tgkill
    time=SYS_time timer_create=SYS_timer_create timer_delete=SYS_timer_delete
    timer_getoverrun=SYS_timer_getoverrun timer_gettime=SYS_timer_gettime timer_settime=SYS_timer_settime
    timerfd_create=SYS_timerfd_create timerfd_gettime=SYS_timerfd_gettime timerfd_settime=SYS_timerfd_settime
    times=SYS_times tkill=SYS_tkill truncate=SYS_truncate umask=SYS_umask uname=SYS_uname unlink=SYS_unlink
    unlinkat=SYS_unlinkat unshare=SYS_unshare ustat=SYS_ustat utime=SYS_utime utimensat=SYS_utimensat
    utimes=SYS_utimes vfork=SYS_vfork vmsplice=SYS_vmsplice wait4=SYS_wait4 waitid=SYS_waitid write=SYS_write
    writev=SYS_writev
}
