// The one main of every test executable.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // No test depends on the defaults that the developer has set for all jobs.
  ::setenv("SORTIE_USER_CONFIG", "none", 1);
  return doctest::Context(argc, argv).run();
}
