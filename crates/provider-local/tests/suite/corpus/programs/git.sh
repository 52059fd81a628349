# needs: git
# A repository's life: commit, branch, merge, clone, worktree, stash, collect garbage.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
git init -q -b main origin
cd origin
for number in 1 2 3; do echo "$number" >"file$number"
git add .
git commit -q -m "change $number"; done
git checkout -q -b side HEAD~1
echo side >side
git add side
git commit -q -m side
git checkout -q main
git merge -q --no-edit side
echo dirty >>file1
git stash -q
git stash pop -q
git checkout -q file1
git worktree add -q ../tree side
[ "$(cat ../tree/side)" = side ]
cd ..
git clone -q origin copy
cd copy
[ "$(git rev-list --count HEAD)" = 5 ]
git clone -q --bare "file://$PWD/../origin" ../bare.git
echo more >more
git add more
git commit -q -m more
git push -q ../bare.git HEAD:pushed
git gc -q --aggressive
git fsck --strict
git config core.fsmonitor false
git grep -q side
git log --oneline | grep >/dev/null side
