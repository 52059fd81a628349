# needs: bash
# Job control, here documents, process substitution, coprocesses, traps.
set -m
sleep 100 &
kill -STOP %1
kill -CONT %1
kill %1
wait %1 2>/dev/null && exit 1
[ $? = 143 ]
[ "$(cat <<END
here $((6 * 7))
END
)" = "here 42" ]
diff <(printf 'a\nb\n') <(printf 'a\nb\n')
coproc tr a-z A-Z
exec 7<&"${COPROC[0]}" # it is unset when the coprocess ends
echo shout >&"${COPROC[1]}"
exec {COPROC[1]}>&-
read -r loud <&7
[ "$loud" = SHOUT ]
[ "$(trap 'echo bye' EXIT)" = bye ]
[ "$(bash -c 'trap "echo usr1" USR1; kill -USR1 $$; sleep 0')" = usr1 ]
[ "$(ulimit -n 64; ulimit -n)" = 64 ]
mkfifo pipe
echo through >pipe &
[ "$(cat pipe)" = through ]
[ "$(bash -ic 'echo interactive' 2>/dev/null)" = interactive ]
