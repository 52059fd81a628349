# A host that is not known yet, and its password, of a real sshd at the other end of a pipe. A password cannot be right
# there: nobody's can be checked without privilege.
cd "$(mktemp -d)" || exit
ssh-keygen -q -t ed25519 -N '' -f key
cat > conf <<END
HostKey $PWD/key
PidFile none
UsePAM no
StrictModes no
KbdInteractiveAuthentication no
LogLevel QUIET
END
sshd="/usr/sbin/sshd -i -f $PWD/conf"
# As root it wants a directory that only a host with a running one has.
[ "$(id -u)" != 0 ] || sshd="unshare -m sh -c \"mount -t tmpfs none /run && mkdir /run/sshd && exec $sshd\""
ssh -F /dev/null -o "ProxyCommand=$sshd" -o "UserKnownHostsFile=$PWD/known" -o GlobalKnownHostsFile=/dev/null \
  -o PubkeyAuthentication=no ada@build.test
