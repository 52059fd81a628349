# needs: script stty
# A terminal of one's own.
[ "$(script -qec 'test -t 0 && stty size >/dev/null && echo terminal' /dev/null </dev/null | tr -d '\r\n')" = terminal ]
