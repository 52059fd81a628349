# needs: vim
# As agents use it: a script on a file.
echo old >file
vim -u NONE -es -c '%s/old/new/' -c wq file </dev/null
[ "$(cat file)" = new ]
