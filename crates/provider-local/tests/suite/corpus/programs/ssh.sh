# needs: ssh-keygen ssh-agent ssh-add
# Keys and their agent.
ssh-keygen -q -t ed25519 -N '' -f key
ssh-keygen -l -f key.pub | grep >/dev/null ED25519
echo text >file
ssh-keygen -q -Y sign -f key -n test file 2>/dev/null
echo "me $(cat key.pub)" >signers
ssh-keygen -q -Y verify -f signers -I me -n test -s file.sig <file >/dev/null
eval "$(ssh-agent -s)" >/dev/null
ssh-add -q key
ssh-add -l | grep >/dev/null ED25519
kill "$SSH_AGENT_PID"
