# needs: tar gzip xz bzip2 zstd
# Every compressor, with threads where there are, owners and holes kept.
mkdir -p tree/deep
head -c 300000 /dev/urandom >tree/deep/data
ln -s data tree/deep/link
ln tree/deep/data tree/hard
truncate -s 10M tree/holes
chmod 640 tree/deep/data
for flag in z J j --zstd; do
  case $flag in --*) option=$flag ;; *) option=-$flag ;; esac
  XZ_OPT=-T2 tar -S -c $option -f out tree
  rm -rf copy
  mkdir copy
  tar -x $option -p -f out -C copy
  diff -r tree copy/tree
  [ "$(stat -c %a copy/tree/deep/data)" = 640 ]
  [ -L copy/tree/deep/link ]
done
