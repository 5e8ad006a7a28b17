#include "common/base/json_member.h"

#include <doctest/doctest.h>

using namespace sortie;

TEST_CASE("members of JSON that are missing or of another type read as zero, empty or false") {
  const auto json = nlohmann::json::parse(
      R"({"text": "a", "flag": true, "big": 18446744073709551615, "less": -1, "half": 0.5,
          "texts": ["b", 1, "c"]})");
  CHECK(json_member::text(json, "text") == "a");
  CHECK(json_member::flag(json, "flag"));
  CHECK(json_member::u64(json, "big") == 18446744073709551615u);
  CHECK(json_member::number(json, "less") == -1.0);
  CHECK(json_member::texts(json, "texts") == std::vector<std::string>{"b", "c"});
  CHECK(json_member::u32(json, "less") == 0);
  CHECK(json_member::u32(json, "big") == 4000000000u);
  for (const char* key : {"text", "flag", "less", "half", "texts", "absent"}) {
    CAPTURE(key);
    CHECK(json_member::u64(json, key) == 0);
  }
  for (const nlohmann::json& other :
       {json, nlohmann::json(), nlohmann::json(7), nlohmann::json::array({"absent"}),
        nlohmann::json::parse("{", nullptr, /*allow_exceptions=*/false)}) {
    CHECK(json_member::text(other, "absent").empty());
    CHECK(json_member::texts(other, "absent").empty());
    CHECK_FALSE(json_member::flag(other, "absent"));
    CHECK(json_member::u64(other, "absent") == 0);
    CHECK(json_member::number(other, "absent") == 0.0);
  }
}
