# needs: zip unzip
echo content >file
zip -q a.zip file
mkdir out
unzip -q a.zip -d out
diff file out/file
