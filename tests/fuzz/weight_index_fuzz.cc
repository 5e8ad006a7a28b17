// Fuzzes parse_weight_index() with a model.safetensors.index.json. An accepted index names only
// files in the same folder.
#include <cstdint>
#include <filesystem>

#include "common/base/check.h"
#include "trainer/hf/weight_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto files = sortie::trainer::parse_weight_index(text, "index");
  if (!files) {
    SORTIE_CHECK(files.error().message.starts_with("index: "));
    return 0;
  }
  SORTIE_CHECK(!files->empty());
  const std::filesystem::path folder = "/models/x";
  for (const std::string& file : *files) {
    const auto path = (folder / file).lexically_normal();
    SORTIE_CHECK(path.parent_path() == folder && path.has_filename(), "{}", path.string());
  }
  return 0;
}
