// Fuzzes the parsers of a checkpoint's manifest and of a rank's shard report. Accepted input
// survives writing and parsing.
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "trainer/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sortie::trainer;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto manifest = parse_manifest(text, "fuzz")) {
    const std::string written = to_json(*manifest);
    const auto again = parse_manifest(written, "again");
    SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
    SORTIE_CHECK(to_json(*again) == written);
  }
  if (const auto shard = parse_shard_info(text)) {
    const std::string written = serialize(*shard);
    const auto again = parse_shard_info(written);
    SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
    SORTIE_CHECK(serialize(*again) == written);
  }
  return 0;
}
