// Paths and symlink targets that a peer must not send.
#include "common/files/entry_path.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace sortie;
using namespace sortie::files;

TEST_CASE("names that leave the folder, hide or break are refused") {
  using namespace std::string_literals;
  for (const std::string& path :
       {""s, "/"s, "/etc/passwd"s, ".."s, "../x"s, "a/../../x"s, "a/.."s, "."s, "./a"s, "a/./b"s,
        "a//b"s, "a/"s, "a\0b"s, "a/b\0"s, ".sortie-part-0011"s, "a/.sortie-part-x"s,
        std::string(256, 'x'), "a/" + std::string(256, 'x')}) {
    CAPTURE(path);
    CHECK_FALSE(check_entry_path(path));
  }
  std::string deep = "d";
  for (int i = 0; i < 300; ++i) deep += "/d";
  CHECK_FALSE(check_entry_path(deep));
  CHECK_FALSE(check_entry_path(std::string(4001, 'a')));
}

TEST_CASE("ordinary and odd names are fine") {
  for (const char* path : {"a", "a/b/c", "...", "..a", "a..", "-rf", " ", "a\nb", "\xff\xfe", "~",
                           "a/~/b", "C:\\x", "*"}) {
    CAPTURE(path);
    CHECK(check_entry_path(path));
  }
  CHECK(check_entry_path(std::string(255, 'x')));
}

TEST_CASE("a folder is followed by what is in it") {
  std::vector<std::string> paths = {"a.b", "a/b", "a", "a/b/c", "a-b", "b", "a/a", "a0"};
  std::ranges::sort(paths, entry_path_less);
  CHECK(paths == std::vector<std::string>{"a", "a/a", "a/b", "a/b/c", "a-b", "a.b", "a0", "b"});
  CHECK_FALSE(entry_path_less("a", "a"));
}

TEST_CASE("links of a transfer stay inside it, or are not made") {
  for (const auto& [path, target] : {std::pair{"l", "a"},
                                     {"l", "./a//b/."},
                                     {"a/l", "../b"},
                                     {"a/b/l", "../../c/d"},
                                     {"a/b/l", ".././.."},
                                     {"l", "..a/b.."}})
    CHECK_MESSAGE(stays_inside(path, target), path << " -> " << target);
  for (const auto& [path, target] :
       {std::pair{"l", "/etc/passwd"},
        {"l", ".."},
        {"l", "../x"},
        {"a/l", "../../x"},
        {"a/b/l", "../.././../x"},
        // If a/s is a link to "..", this leads outside. The check does not know what a/s is.
        {"a/l", "s/../../x"},
        {"a/b/l", "c/.."},
        {"l", ""}})
    CHECK_MESSAGE(!stays_inside(path, target), path << " -> " << target);
}

TEST_CASE("messages show names without control bytes") {
  CHECK(shown_path("a\x1b[2J\xff") == "a^[[2J\xef\xbf\xbd");
  CHECK(shown_path(std::string(500, 'a')).size() < 210);
}
