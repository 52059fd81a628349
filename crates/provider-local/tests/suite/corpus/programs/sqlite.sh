# needs: sqlite3
# Write-ahead log, and two at once.
sqlite3 x.db 'PRAGMA journal_mode=WAL; CREATE TABLE t (x);' >/dev/null
for n in 1 2 3 4; do sqlite3 -cmd '.timeout 10000' x.db "INSERT INTO t VALUES ($n);" & done; wait
[ "$(sqlite3 x.db 'SELECT sum(x) FROM t; PRAGMA integrity_check;' | tr '\n' ' ')" = "10 ok " ]
