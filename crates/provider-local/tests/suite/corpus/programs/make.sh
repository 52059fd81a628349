# needs: make
# Many jobs through the job server, in two levels.
cat >Makefile <<'END'
all: $(addprefix part,1 2 3 4 5 6 7 8)
	$(MAKE) -C sub
part%:
	sleep 0.01 && echo $* > $@
END
mkdir sub
printf 'all: a b c\na b c:\n\techo $@ > $@\n' >sub/Makefile
make -s -j4
[ "$(cat part* | wc -l)" = 8 ]
[ -s sub/c ]
