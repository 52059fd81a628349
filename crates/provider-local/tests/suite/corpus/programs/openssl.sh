# needs: openssl
# A certificate, and a connection that trusts it alone.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out cert -subj /CN=localhost 2>/dev/null
openssl s_server -quiet -accept 127.0.0.1:8443 -key key -cert cert -naccept 1 -www >/dev/null 2>&1 &
for _ in $(seq 1000); do
  echo | openssl s_client -connect 127.0.0.1:8443 -CAfile cert -verify_return_error >seen 2>/dev/null && break || sleep 0.05
done
grep -q 'Verify return code: 0' seen
