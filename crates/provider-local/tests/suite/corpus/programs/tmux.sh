# needs: tmux
# A session of one's own: keys go in, a screen comes out.
export LANG=C.UTF-8 TERM=xterm
tmux -f /dev/null new-session -d -s work -x 80 -y 24 sh
tmux send-keys -t work 'echo $((6 * 7))' Enter
for _ in $(seq 1000); do tmux capture-pane -p -t work | grep -w 42 >/dev/null && break || sleep 0.05; done
tmux capture-pane -p -t work
tmux capture-pane -p -t work | grep -w 42
tmux split-window -t work 'sleep 100'
[ "$(tmux list-panes -t work | wc -l)" = 2 ]
tmux kill-server
