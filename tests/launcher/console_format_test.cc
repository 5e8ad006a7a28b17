// Formatting of console output.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

TEST_CASE("text of a rank can not take over the terminal") {
  for (const auto& [bytes, shown] : std::vector<std::pair<std::string, std::string>>{
           {"plain\ttab", "plain\ttab"},
           {"\x1b[2Jx", "^[[2Jx"},
           {"a\bb\x7f", "a^Hb^?"},
           {"one\ntwo", "one^Jtwo"},
           {std::string("\0", 1), "^@"},
           {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
           {"\xff", "\xef\xbf\xbd"},
           {"\xc2\x9b[2J", "\xef\xbf\xbd[2J"},  // a C1 CSI
           {"\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x1b\\", "^[]0;title^G^[]52;c;ZXZpbA==^[\\"},
           {"\x1bP+q\x1b\\\x1b_x\x0e\x0f\x05", "^[P+q^[\\^[_x^N^O^E"},
           {"\xc2\x85\xc2\x90\xc2\x9d", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
           {"\x9b\x31m", "\xef\xbf\xbd\x31m"},  // the same CSI as one byte
           {"a\xe2\x80\xae"
            "b\xe2\x81\xa6"
            "c\xd8\x9c",
            "a<U+202E>b<U+2066>c<U+061C>"},
           {"\xe2\x80\xa8\xef\xbb\xbf\xf3\xa0\x81\x81", "<U+2028><U+FEFF><U+E0041>"},
           {"\xc2\xa0\xe2\x80\x8d", "\xc2\xa0\xe2\x80\x8d"},  // joins letters, so it stays
           {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
           {"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"}}) {
    CAPTURE(shown);
    CHECK(printable(bytes) == shown);
  }
  CHECK(printable_lines("a\x1b\nb\n") == "a^[\nb\n");
  CHECK(printable_lines("") == "");
}

TEST_CASE("of all bytes and all characters none that a terminal obeys comes through") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (int byte = 0x80; byte < 0xc0; ++byte) (all += '\xc2') += static_cast<char>(byte);
  for (int byte = 0x80; byte < 0xc0; ++byte) (all += "\xe2\x80") += static_cast<char>(byte);
  const std::string shown = printable(all);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    CHECK((byte >= 0x20 || byte == '\t'));
    CHECK(byte != 0x7f);
    if (byte == 0xc2) CHECK(static_cast<unsigned char>(shown.at(i + 1)) >= 0xa0);
  }
  CHECK(printable(shown) == shown);
}

TEST_CASE("an event is a flat object with a type") {
  CHECK(parse_event(R"({"type":"step","step":3})"));
  CHECK(parse_event(R"({"type":"x","a":{"b":[1,2]}})"));
  for (const char* text : {"", "{", "[]", "3", "{}", R"({"type":3})", R"({"type":"x"} more)",
                           "{\"type\":\"\xff\"}", R"({"type":"x","a":NaN})"})
    CHECK_MESSAGE(!parse_event(text), text);
  // The largest event that a rank may send, with the deepest nesting possible.
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = R"({"type":"x","a":)";
    std::size_t depth = 0;
    for (; deep.size() < 32u << 10; ++depth) deep += open;
    deep += "1";
    for (; depth > 0; --depth) deep += *open == '[' ? "]" : "}";
    CHECK_FALSE(parse_event(deep + "}"));
  }
}

}  // namespace
}  // namespace sortie::launcher
