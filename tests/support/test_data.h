// The folder tests/data, as tests of GPU machines find it.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace sortie::test {

/// tests/data of the sources, or the folder that SORTIE_TEST_DATA names: archives of
/// scripts/gpu_bundle have no sources.
inline std::filesystem::path test_data() {
  const char* text = std::getenv("SORTIE_TEST_DATA");
  return text != nullptr ? text : SORTIE_TEST_DATA;
}

}  // namespace sortie::test
