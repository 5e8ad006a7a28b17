// The likeliest text of every family as transformers' generate() gives it
// (tests/data/hf/*/greedy.json, by scripts/make_hf_fixtures.py), with and without the cache of keys
// and values.
#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "trainer/generate.h"
#include "trainer/hf/import.h"
#include "trainer/model_loader.h"

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

TEST_CASE("greedy text of imported models is that of transformers") {
  using Tokens = std::vector<std::int32_t>;
  const fs::path scratch =
      fs::temp_directory_path() / ("sortie-greedy-" + std::to_string(::getpid()));
  std::size_t models = 0;
  for (const auto& folder : fs::directory_iterator(SORTIE_TEST_DATA "/hf")) {
    const std::string name = folder.path().filename();
    CAPTURE(name);
    fs::remove_all(scratch);
    const auto imported = import_hf(folder.path(), scratch);
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    const auto loaded = load_model(scratch, 1, "f32");
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    const auto expected = nlohmann::json::parse(read_file(folder.path() / "greedy.json").value());
    REQUIRE(expected["prompts"].size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const Tokens prompt = expected["prompts"][i], want = expected["continuations"][i];
      for (const bool cache : {true, false}) {
        CAPTURE(i);
        CAPTURE(cache);
        SamplingOptions options;
        options.temperature = 0;
        options.cache = cache;
        options.max_tokens = static_cast<std::int64_t>(want.size());
        Tokens got;
        generate((*loaded)->context, *(*loaded)->model, prompt, options, [&](std::int32_t token) {
          got.push_back(token);
          return true;
        });
        CHECK(got == want);
      }
    }
    ++models;
  }
  CHECK(models >= 21);
  fs::remove_all(scratch);
}
