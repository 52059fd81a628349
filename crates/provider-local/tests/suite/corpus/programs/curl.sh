# needs: curl python3
# A server and a client on loopback, by number and by name; nobody else answers.
echo served >page
python3 -u -m http.server --bind 127.0.0.1 8123 >log 2>&1 &
for _ in $(seq 1000); do curl -sf http://127.0.0.1:8123/page && break || sleep 0.05; done | grep -x served >/dev/null
curl -sf http://localhost:8123/page | grep -x served >/dev/null
if curl -s --max-time 5 http://192.0.2.1/; then exit 1; fi
kill %1
