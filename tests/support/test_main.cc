// main() of every test executable.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Tests must not depend on the developer's own defaults.
  ::setenv("SORTIE_USER_CONFIG", "none", 1);
  return doctest::Context(argc, argv).run();
}
