# needs: perl
# Forks, sockets, System V shared memory.
perl -MIO::Socket::INET -MIPC::SysV=IPC_PRIVATE,IPC_CREAT,IPC_RMID -we '
  my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $!;
  if (!fork) { my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $server->sockport) or die $!; print $c "hi\n"; exit }
  my $got = $server->accept->getline; wait; die unless $got eq "hi\n";
  my $id = shmget(IPC_PRIVATE, 64, IPC_CREAT | 0600) // die $!;
  shmwrite($id, "text", 0, 4) or die $!; shmread($id, my $read, 0, 4) or die $!; shmctl($id, IPC_RMID, 0);
  die unless $read eq "text"'
