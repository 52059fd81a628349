# needs: gcc
# Compile, link and run: threads, shared libraries, link-time optimisation.
cat >main.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *work(void *value) { return value; }
int helper(void);
int main(void) {
  pthread_t threads[8];
  for (long i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, (void *)i);
  long sum = helper();
  for (int i = 0; i < 8; i++) { void *value; pthread_join(threads[i], &value); sum += (long)value; }
  printf("%ld\n", sum);
  return 0;
}
END
echo 'int helper(void) { return 14; }' >helper.c
gcc -O2 -pthread main.c helper.c -o plain
[ "$(./plain)" = 42 ]
gcc -O2 -flto=2 -pthread main.c helper.c -o lto
[ "$(./lto)" = 42 ]
gcc -shared -fPIC helper.c -o libhelper.so
gcc -pthread main.c -L. -lhelper -Wl,-rpath,"$PWD" -o shared
[ "$(./shared)" = 42 ]
gcc -c helper.c
ar rcs libh.a helper.o
gcc -pthread main.c libh.a -o archived
[ "$(./archived)" = 42 ]
gcc -fsanitize=address -pthread main.c helper.c -o checked 2>/dev/null
[ "$(ASAN_OPTIONS=detect_leaks=0 ./checked)" = 42 ]
