# needs: busybox
# A static program: no loader, no library.
[ "$(busybox sh -c 'echo $((6 * 7)) | busybox cat')" = 42 ]
