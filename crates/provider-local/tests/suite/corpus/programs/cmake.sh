# needs: cmake ninja gcc
# Configure and build.
printf 'cmake_minimum_required(VERSION 3.10)\nproject(x C)\nadd_executable(x x.c)\n' >CMakeLists.txt
echo 'int main(void) { return 0; }' >x.c
cmake -G Ninja -B build >/dev/null
cmake --build build -j 4 >/dev/null
build/x
