# needs: find xargs grep sed awk sort
# Many files, many processes at once.
mkdir many
for n in $(seq 300); do echo "$n" >"many/$n"; done
[ "$(find many -type f -print0 | xargs -0 -P 8 -n 10 cat | sort -n | awk '{ s += $1 } END { print s }')" = 45150 ]
seq 200000 | shuf | sort --parallel=4 -S 10M -n | sed -n '$p' | grep -x 200000 >/dev/null
find many -name '1*' -delete
[ "$(find many -type f | wc -l)" = 189 ]
