# needs: g++
# Threads, exceptions and the filesystem of C++.
cat >main.cc <<'END'
#include <filesystem>
#include <future>
#include <iostream>
#include <stdexcept>
int main() {
  auto answer = std::async(std::launch::async, [] { return 42; });
  std::filesystem::create_directories("made/deep");
  try { throw std::runtime_error("x"); } catch (const std::exception &) { std::cout << answer.get() << std::endl; }
}
END
g++ -std=c++17 -O1 main.cc -o main -pthread
[ "$(./main)" = 42 ]
[ -d made/deep ]
