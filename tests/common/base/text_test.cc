#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/base/c_strings.h"
#include "common/base/digits.h"
#include "common/base/fnv1a.h"
#include "common/base/split.h"
#include "common/base/utf8.h"

using namespace sortie;

TEST_CASE("FNV-1a gives the published values") {
  CHECK(fnv1a_32("") == 0x811c9dc5u);
  CHECK(fnv1a_32("foobar") == 0xbf9cf968u);
  CHECK(fnv1a_64("") == 0xcbf29ce484222325u);
  CHECK(fnv1a_64("foobar") == 0x85944171f73967e8u);
}

TEST_CASE("texts for exec() end with a null pointer") {
  const std::vector<std::string> texts = {"a", "", "b c"};
  const std::vector<char*> pointers = c_strings(texts);
  REQUIRE(pointers.size() == 4);
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(pointers[i] == texts[i].c_str());
  CHECK(pointers.back() == nullptr);
  CHECK(c_strings({}) == std::vector<char*>{nullptr});
}

TEST_CASE("a number is at least one digit, and nothing else") {
  for (const char* text : {"0", "007", "4194304"}) CHECK(all_digits(text));
  for (const char* text : {"", "-1", "1 ", "self", "1a"}) CHECK_FALSE(all_digits(text));
}

TEST_CASE("lines are taken off a text, also an unfinished last one and empty ones") {
  std::string_view text = "a\n\nb";
  CHECK(take_line(text) == "a");
  CHECK(take_line(text) == "");
  CHECK(take_line(text) == "b");
  CHECK(text.empty());
  text = "c\n";
  CHECK(take_line(text) == "c");
  CHECK(text.empty());
}

TEST_CASE("items between separators, with and without empty ones") {
  using Parts = std::vector<std::string>;
  CHECK(split("a,,b", ',') == Parts{"a", "", "b"});
  CHECK(split("a,", ',') == Parts{"a", ""});
  CHECK(split("", ',') == Parts{""});
  CHECK(split_filled(",a,,b,", ',') == Parts{"a", "b"});
  CHECK(split_filled("", ',').empty());
}

TEST_CASE("UTF-8: the longest and shortest forms, and what is none") {
  for (const char* good : {"a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    CAPTURE(good);
    CHECK(utf8_length(good) == std::string(good).size());
    CHECK(utf8_length(std::string(good) + "z") == std::string(good).size());
  }
  // A continuation byte alone, overlong forms, a surrogate, code points above U+10FFFF, invalid
  // first bytes, truncated sequences.
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc2", "\xe2\x82", "\xf0\x9f\x98"}) {
    CAPTURE(bad);
    CHECK(utf8_length(bad) == 0);
  }
  CHECK(utf8_length("") == 0);
  CHECK(utf8_length(std::string(1, '\0')) == 1);
}

TEST_CASE("UTF-8: a bad run is the longest one that begins a character") {
  CHECK(read_utf8("\xe2\x82z").bytes == 2);
  CHECK(!read_utf8("\xe2\x82z").cut);
  CHECK(read_utf8("\xe2\x82").cut);
  CHECK(read_utf8("\xe0\x80").bytes == 1);
  CHECK(!read_utf8("\xe0\x80").cut);
}
