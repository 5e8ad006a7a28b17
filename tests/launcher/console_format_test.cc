// The pure half of the console.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

using nlohmann::json;

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
           {"\x9b\x31m", "\xef\xbf\xbd\x31m"},  // the same as one byte
           {"a\xe2\x80\xae"
            "b\xe2\x81\xa6"
            "c\xd8\x9c",
            "a<U+202E>b<U+2066>c<U+061C>"},
           {"\xe2\x80\xa8\xef\xbb\xbf\xf3\xa0\x81\x81", "<U+2028><U+FEFF><U+E0041>"},
           {"\xc2\xa0\xe2\x80\x8d", "\xc2\xa0\xe2\x80\x8d"},  // joins letters: stays
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

TEST_CASE("short numbers") {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0"},
                                                                               {512, "512"},
                                                                               {0.5, "0.50"},
                                                                               {999, "999"},
                                                                               {1000, "1.00k"},
                                                                               {45600, "45.6k"},
                                                                               {1.234e6, "1.23M"},
                                                                               {999.6e6, "1.00G"},
                                                                               {4.2e13, "42.0T"},
                                                                               {-1500, "-1.50k"},
                                                                               {NAN, "-"},
                                                                               {INFINITY, "-"}}) {
    CAPTURE(value);
    CHECK(short_number(value) == text);
  }
}

TEST_CASE("short times") {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0s"},
                                                                               {42.4, "42s"},
                                                                               {59.6, "1m00s"},
                                                                               {185, "3m05s"},
                                                                               {3599.6, "1h00m"},
                                                                               {3720, "1h02m"},
                                                                               {360000, "100h00m"},
                                                                               {-1, "-"},
                                                                               {NAN, "-"},
                                                                               {INFINITY, "-"},
                                                                               {1e300, "-"}}) {
    CAPTURE(value);
    CHECK(short_time(value) == text);
  }
}

TEST_CASE("the line of a step") {
  json event = {{"type", "step"},  {"step", 20},       {"steps", 100},           {"loss", 2.34567},
                {"lr", 0.001},     {"grad_norm", 0.5}, {"tokens_per_s", 12345.}, {"flops", 3.21e11},
                {"step_ms", 83.2}, {"eta_s", 65}};
  CHECK(step_line(event) ==
        "step     20/100  loss  2.3457  lr 1.00e-03  grad  0.500   12.3k tokens/s    321GFLOP/s  "
        "   83 ms  ETA 1m05s");
  event["skipped"] = true;
  CHECK(step_line(event).ends_with("SKIPPED (gradients not finite)"));
  event["skipped"] = "yes";  // anything can come through a rank's socket
  event["loss"] = json::array();
  event.erase("eta_s");
  CHECK(step_line(event).ends_with("ETA -"));
}

TEST_CASE("an event is a flat object with a type") {
  CHECK(parse_event(R"({"type":"step","step":3})"));
  CHECK(parse_event(R"({"type":"x","a":{"b":[1,2]}})"));
  for (const char* text : {"", "{", "[]", "3", "{}", R"({"type":3})", R"({"type":"x"} more)",
                           "{\"type\":\"\xff\"}", R"({"type":"x","a":NaN})"})
    CHECK_MESSAGE(!parse_event(text), text);
  // What a rank may send at most, as deep as it can be.
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
