# needs: timeout nice flock stdbuf mktemp install dd
# What scripts lean on.
timeout 0.2 sleep 10 && exit 1 || [ $? = 124 ]
nice -n 5 true
nohup true >/dev/null 2>&1
stdbuf -oL true
setsid true
exec 9>lock
flock 9
if flock -n lock true; then exit 1; fi
[ "$(dd if=/dev/zero bs=1k count=64 status=none | wc -c)" = 65536 ]
install -D -m 755 /usr/bin/true bin/true
bin/true
cp --reflink=auto --sparse=always bin/true other
ln -s other link
mv link moved
touch -d 2001-01-01 other
[ "$(date -r other +%Y)" = 2001 ]
df . >/dev/null
free >/dev/null
ps -e >/dev/null
id -un >/dev/null
uptime >/dev/null
echo text >lines
tail -f lines >/dev/null &
sleep 0.05
kill $!
[ "$(nproc)" -ge 1 ]
chrt -p $$ >/dev/null
ionice -c 3 true
